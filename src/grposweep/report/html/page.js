// The leaderboard, a trial's own window, and what happens when.

const table = document.getElementById("trials"), body = table.tBodies[0], rows = [...body.rows];

function keyOf(row, column, kind) {
  const cell = row.cells[column], key = cell.dataset.key ?? cell.textContent;
  if (key === "") return null;
  const number = Number(key);
  return kind === "text" || Number.isNaN(number) ? key : number;
}

function sortBy(heading) {
  const column = heading.cellIndex, kind = heading.dataset.kind, before = heading.getAttribute("aria-sort");
  const first = heading.dataset.first === "down" ? "descending" : "ascending";
  const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const keyed = rows.map((row) => [keyOf(row, column, kind), row]);
  keyed.sort(([a], [b]) => compare(a, b, sign));
  body.replaceChildren(...keyed.map(([, row]) => row));
}

// Nothing comes last, whichever way it is sorted; numbers before words.
function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
}

function filterRows() {
  const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const state = document.getElementById("state").value;
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = (state !== "" && row.dataset.state !== state) || !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  document.getElementById("shown").textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
}

// A parameter's value, and the base configuration's if that is known and another.
function againstBaseline(parameter, value) {
  const base = parameter.baseline;
  return value === null || base === null || base === value ? value : `${label(value)} (baseline ${label(base)})`;
}

function showTrial(number) {
  const trial = DATA.trials.find((t) => t.number === number);
  if (!trial) return;
  document.getElementById("trial-title").textContent = `trial ${trial.number}: ${trial.label}`;
  const facts = [["folder", trial.folder], ...DATA.parameters.map((parameter, i) => [parameter.name, againstBaseline(parameter, trial.point[i])]),
    ["since the start", trial.value === null || trial.start === null ? null : label(trial.value - trial.start)],
    [DATA.metric, trial.value], ["stopped at", trial.reached], ["± 95 % over prompts", trial.half === null ? null : trial.half.toFixed(4)],
    ["role", trial.role === "search" ? null : trial.role],
    [DATA.hours, trial.hours], ["trained with", trial.trained || null], ["why", trial.why || null]];
  const list = document.createElement("dl");
  for (const [name, value] of facts.filter(([, value]) => value !== null)) {
    list.append(Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: value }));
  }
  document.getElementById("trial-body").replaceChildren(list);
  document.getElementById("trial-command").textContent = trial.command || "no command was written down";
  document.getElementById("trial").querySelector("button.copy").textContent = "Copy";
  showTrialSaid(trial);
  document.getElementById("trial").showModal();
  drawTrial(trial);
}

// What is before the button: a command, or the hidden file that the command would write.
async function copyBefore(button) {
  const place = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(place.textContent);
    button.textContent = "Copied";
  } catch { // from disk a browser may refuse: then it is selected, ready for Ctrl-C
    place.hidden = false;
    getSelection().selectAllChildren(place);
    button.textContent = "Selected: press Ctrl-C";
  }
}

function fill(id, options, chosen) {
  document.getElementById(id)?.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === chosen)));
}

// Not every sweep has all of them.
const FIGURES = { effects: drawEffects, curves: drawCurves, progress: drawProgress, slices: drawSlices, map: drawMap,
  parallel: drawParallel };

// One after the other, so that the page can be used meanwhile.
function drawAll() {
  for (const [name, figure] of Object.entries(FIGURES)) if (document.getElementById(`plot-${name}`)) setTimeout(figure);
}

const numeric = DATA.parameters.findIndex((parameter) => parameter.log || parameter.number);
const choices = DATA.parameters.map((parameter, i) => [i, parameter.short]);
fill("metric", DATA.metrics.map((name) => [name, name]), DATA.metric);
fill("across", choices, Math.max(numeric, 0));
fill("up", choices, choices.map(([i]) => i).find((i) => i !== Math.max(numeric, 0)));

for (const heading of table.tHead.rows[0].cells) heading.addEventListener("click", () => sortBy(heading));
for (const id of ["filter", "state"]) document.getElementById(id).addEventListener("input", filterRows);
for (const id of ["metric", "over"]) document.getElementById(id).addEventListener("input", drawCurves);
for (const id of ["across", "up"]) document.getElementById(id)?.addEventListener("input", drawMap);
for (const row of document.querySelectorAll("tr[data-trial]")) {
  row.addEventListener("click", () => showTrial(Number(row.dataset.trial)));
  row.addEventListener("keydown", (event) => event.key === "Enter" && showTrial(Number(row.dataset.trial)));
}
for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copyBefore(button));
startCompletions();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
