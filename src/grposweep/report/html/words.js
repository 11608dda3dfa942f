"use strict";
// The data, colours of the present theme, and text as Plotly may show it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const TOP = 5; // points that get a colour of their own
const SIGN = DATA.maximize ? 1 : -1;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Each list of steps is in the data once.
for (const trial of DATA.trials) for (const curve of Object.values(trial.curves)) curve[0] = DATA.steps[curve[0]];

// A page that was moved without its plotly.js still has its tables.
const DRAWS = typeof Plotly !== "undefined";
if (!DRAWS) document.getElementById("lacking").hidden = false;

// Plotly reads tags and entities in its texts.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function label(value) {
  if (value === null) return "";
  return typeof value === "number" ? String(Number(value.toPrecision(3))) : String(value);
}

const pointText = (trial) =>
  DATA.parameters.map((parameter, i) => [parameter.short, trial.point[i]]).filter(([, value]) => value !== null)
    .map(([name, value]) => `${name}=${label(value)}`).join(" ");

const hoverName = (trial) => `trial ${trial.number}<br>${plain(pointText(trial)).replaceAll(" ", "<br>")}`;

const finished = () => DATA.trials.filter((trial) => trial.value !== null);

// What a trial ended with, or had reached when it was paused or stopped early.
const lastValue = (trial) => trial.value ?? trial.reached;

function layout(more) {
  const axis = { gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true };
  const given = Object.fromEntries(Object.entries(more).filter(([name]) => /^[xy]axis/.test(name))
    .map(([name, options]) => [name, { ...axis, ...options }]));
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: color("ink"), family: "system-ui, sans-serif", size: 12 },
    margin: { l: 56, r: 16, t: 34, b: 48 }, hovermode: "closest", showlegend: false, xaxis: axis, yaxis: axis,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("quiet"), activecolor: color("ink") },
    hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("ink") }, align: "left" },
    ...more, ...given,
  };
}

// Buttons of a figure only under the pointer: on a touch screen they would stay, over a title.
const CONFIG = { responsive: true, displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };

// Draw into an element; a click on a point of a trial tells it.
function draw(id, traces, options) {
  if (!DRAWS) return;
  const place = document.getElementById(id);
  Plotly.react(place, traces, layout(options), CONFIG);
  if (!place.dataset.clicks) {
    place.dataset.clicks = "yes";
    place.on("plotly_click", (event) => {
      const number = event.points[0].customdata;
      if (typeof number === "number") showTrial(number);
    });
  }
}

function sayInstead(id, text) {
  const place = document.getElementById(id);
  if (DRAWS) Plotly.purge(place);
  place.style.height = "auto";
  place.replaceChildren(Object.assign(document.createElement("p"), { textContent: text }));
}
