// Learning curves (values as logged, thinned by html_page.py, not smoothed), progress, slices.

function drawCurves() {
  const metric = document.getElementById("metric").value, over = document.getElementById("over").value;
  const drawn = DATA.trials.filter((trial) => trial.curves[metric]);
  if (!drawn.length) return sayInstead("plot-curves", "No trial has a curve yet.");
  const top = drawn.filter((trial) => trial.rank !== null && trial.rank < TOP);
  const others = drawn.filter((trial) => !top.includes(trial));
  const of = (state) => others.filter((trial) => trial.state === state);
  const rest = others.filter((trial) => !["pruned", "failed", "paused", "running"].includes(trial.state));
  const traces = [
    bundle(rest, metric, over, { name: "other trials", color: color("faint"), width: 1 }),
    bundle(of("pruned"), metric, over, { name: "stopped early", color: color("warn"), width: 1, end: "diamond" }),
    bundle(of("paused"), metric, over, { name: "paused", color: color("move"), width: 1, end: "square" }),
    bundle(of("failed"), metric, over, { name: "failed", color: color("bad"), width: 1, end: "x" }),
    bundle(of("running"), metric, over, { name: "running", color: color("move"), width: 1.5, dash: "dot" }),
  ].flat();
  const axis = span(drawn.flatMap((trial) => trial.curves[metric][1])), room = axis.range[1] - axis.range[0];
  for (let rank = TOP - 1; rank >= 0; rank--) traces.push(...pointCurve(top.filter((t) => t.rank === rank), metric, over, rank, room));
  draw("plot-curves", traces, {
    showlegend: true, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", font: { size: 11 } },
    xaxis: { title: { text: over === "steps" ? "optimizer steps" : over }, rangemode: "tozero" },
    yaxis: { title: { text: plain(metric) }, ...axis },
  });
}

// An axis that shows all means, and no band far beyond them.
function span(values) {
  const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b)), room = 0.06 * (high - low || Math.abs(high) || 1);
  return { range: [low - room, high + room] };
}

// The curve of one trial in its own window, before the best trial's.
function drawTrial(trial) {
  const metric = DATA.metric, place = document.getElementById("plot-trial");
  place.hidden = !trial.curves[metric];
  if (place.hidden) return;
  const best = DATA.trials.find((other) => other.rank === 0 && other.number !== trial.number && other.curves[metric]);
  const curve = (drawn, name, ink, width) => ({ x: along(drawn, metric, "steps"), y: drawn.curves[metric][1], mode: "lines", name, line: { color: ink, width },
    hovertemplate: `${plain(name)}<br>%{y:.4f} at step %{x}<extra></extra>` });
  draw("plot-trial", [...(best ? [curve(best, `best, trial ${best.number}`, color("quiet"), 1.5)] : []), curve(trial, `trial ${trial.number}`, color("c1"), 3)], {
    showlegend: true, legend: { orientation: "h", y: 1.12 }, xaxis: { title: { text: "optimizer steps" }, rangemode: "tozero" }, yaxis: { title: { text: plain(metric) } },
  });
}

const along = (trial, metric, over) =>
  trial.curves[metric][0].map((step) => (over === "steps" ? step : step * trial.per_step));

// Many trials as one trace with gaps, which stays quick where there are hundreds; their ends as another.
function bundle(trials, metric, over, style) {
  if (!trials.length) return [];
  const x = [], y = [], text = [], customdata = [], ends = { x: [], y: [], text: [], customdata: [] };
  for (const trial of trials) {
    const across = along(trial, metric, over), values = trial.curves[metric][1];
    x.push(...across, null);
    y.push(...values, null);
    for (let i = 0; i <= values.length; i++) { text.push(hoverName(trial)); customdata.push(trial.number); }
    ends.x.push(across.at(-1));
    ends.y.push(values.at(-1));
    ends.text.push(hoverName(trial) + (trial.why ? `<br>${plain(trial.why.slice(0, 90))}` : ""));
    ends.customdata.push(trial.number);
  }
  const hover = "%{text}<br>%{y} at %{x}<extra></extra>";
  const line = { x, y, text, customdata, mode: "lines", name: style.name, hovertemplate: hover, connectgaps: false,
    legendgroup: style.name, line: { color: style.color, width: style.width, dash: style.dash ?? "solid" } };
  if (!style.end) return [line];
  const marker = { symbol: style.end, size: 8, color: style.color };
  return [{ ...line, opacity: 0.55 }, { ...ends, mode: "markers", name: style.name, legendgroup: style.name, showlegend: false,
    hovertemplate: hover, marker }];
}

// A point of the leaderboard: the mean over its seeds, and the band around it unless it is wider than the plot (room).
function pointCurve(ofPoint, metric, over, rank, room) {
  const trials = ofPoint.filter((trial) => trial.counts);
  if (!trials.length) return [];
  const mean = meanCurve(trials, metric, over), ink = color(`c${rank + 1}`), name = `${rank + 1}. trial ${ofPoint[0].number}`;
  const shared = { legendgroup: name, hoverinfo: "skip", mode: "lines", line: { width: 0 }, showlegend: false };
  const wide = mean.half && Math.max(...mean.half) > room, band = mean.half && !wide ? [
    { ...shared, x: mean.x, y: mean.y.map((v, i) => v + mean.half[i]) },
    { ...shared, x: mean.x, y: mean.y.map((v, i) => v - mean.half[i]), fill: "tonexty", fillcolor: transparent(ink) },
  ] : [];
  const seeds = trials.length > 1 ? `, mean of ${trials.length} seeds` : "";
  const notes = [trials.length > 1 && `${trials.length} seeds`, wide && "band wider than the plot"].filter(Boolean).join(", ");
  return [...band, { x: mean.x, y: mean.y, mode: "lines", name: name + (notes && ` (${notes})`), legendgroup: name, legendrank: rank + 1,
    customdata: mean.x.map(() => ofPoint[0].number), line: { color: ink, width: rank ? 2 : 3 },
    hovertemplate: `${hoverName(ofPoint[0])}${seeds}<br>%{y:.4f} at %{x}<extra></extra>` }];
}

const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]; // Student's, 97.5 %

function meanCurve(trials, metric, over) {
  const [, values, errors] = trials[0].curves[metric];
  if (trials.length === 1)
    return { x: along(trials[0], metric, over), y: values, half: errors && errors.map((error) => 1.96 * error) };
  const bySteps = new Map();
  for (const trial of trials)
    along(trial, metric, over).forEach((x, i) => bySteps.set(x, [...(bySteps.get(x) ?? []), trial.curves[metric][1][i]]));
  const common = [...bySteps].filter(([, ys]) => ys.length === trials.length).sort((a, b) => a[0] - b[0]);
  const means = common.map(([, ys]) => ys.reduce((a, b) => a + b) / ys.length);
  const factor = (T[trials.length - 2] ?? 1.96) / Math.sqrt(trials.length);
  const half = common.map(([, ys], i) =>
    factor * Math.sqrt(ys.reduce((sum, v) => sum + (v - means[i]) ** 2, 0) / (ys.length - 1)));
  return { x: common.map(([x]) => x), y: means, half };
}

const transparent = (hex) => hex + "33";

function drawProgress() {
  const trials = DATA.trials.filter((trial) => trial.ended !== null).sort((a, b) => a.ended - b.ended);
  let spent = 0, best = null;
  const dots = { x: [], y: [], text: [], customdata: [] }, line = { x: [], y: [] };
  for (const trial of trials) {
    spent += trial.hours;
    if (trial.value === null || trial.role === "confirm") continue;
    best = best === null || SIGN * (trial.value - best) > 0 ? trial.value : best;
    dots.x.push(spent); dots.y.push(trial.value); dots.text.push(hoverName(trial)); dots.customdata.push(trial.number);
    line.x.push(spent); line.y.push(best);
  }
  if (!dots.x.length) return sayInstead("plot-progress", "No trial has finished yet.");
  line.x.push(spent); line.y.push(best);
  draw("plot-progress", [
    { ...dots, mode: "markers", marker: { color: color("quiet"), size: 6, opacity: 0.6 }, hovertemplate: "%{text}<br>%{y:.4f}<extra></extra>" },
    { ...line, mode: "lines", line: { shape: "hv", color: color("c1"), width: 2.5 }, hovertemplate: `best %{y:.4f} after %{x:.3g} ${DATA.hours}<extra></extra>` },
  ], { xaxis: { title: { text: DATA.hours }, rangemode: "tozero" }, yaxis: { title: { text: plain(DATA.metric) } } });
}

// How an axis shows a parameter.
const parameterAxis = (parameter) => ({
  title: { text: plain(parameter.short), standoff: 6 }, type: parameter.number ? (parameter.log ? "log" : "linear") : "category",
  ...(parameter.log ? { exponentformat: "e", dtick: "D2", minexponent: 2 } : {}), ...wholeRange(parameter), ...(parameter.number ? {} : { categoryarray: parameter.labels.map(plain), categoryorder: "array" }),
});

// The searched range with some room, rather than that of the trials.
function wholeRange(parameter) {
  const [low, high] = (parameter.range ?? [null, null]).map((end) => (end !== null && parameter.log ? Math.log10(end) : end));
  return low === null || high === null ? {} : { range: [low - 0.04 * (high - low), high + 0.04 * (high - low)] };
}

// Trials without an objective: paused ones and those stopped early at their last value, failed ones at the bottom.
function lostTrials(i) {
  const low = DATA.trials.map(lastValue).reduce((a, b) => (a === null ? b : b === null ? a : Math.min(a, b)), null);
  return [["paused", "square", "move"], ["pruned", "diamond", "warn"], ["failed", "x", "bad"]].map(([state, symbol, ink]) => {
    const trials = DATA.trials.filter((trial) => trial.state === state && trial.value === null && trial.point[i] !== null);
    return { trials, y: trials.map((trial) => trial.reached ?? low), mode: "markers", text: trials.map(hoverName),
      customdata: trials.map((trial) => trial.number), marker: { symbol, size: 8, color: color(ink), opacity: 0.8 } };
  }).filter((kind) => kind.trials.length);
}

const shownAt = (parameter, i) => (trial) => (parameter.number ? trial.point[i] : plain(trial.point[i]));

function drawSlices() {
  const trials = finished();
  if (!DATA.trials.some((trial) => lastValue(trial) !== null) || !DATA.parameters.length) return sayInstead("plot-slices", "No trial has a value yet.");
  const place = document.getElementById("plot-slices");
  const columns = Math.max(1, Math.min(DATA.parameters.length, Math.floor(place.clientWidth / 260), 4));
  const rows = Math.ceil(DATA.parameters.length / columns);
  place.style.height = `${rows * (columns === 1 ? 250 : 290) + 30}px`;
  const traces = [], axes = {};
  DATA.parameters.forEach((parameter, i) => {
    const asked = trials.filter((trial) => trial.point[i] !== null), n = i ? i + 1 : "";
    traces.push({
      x: asked.map(shownAt(parameter, i)), y: asked.map((trial) => trial.value),
      mode: "markers", xaxis: `x${n}`, yaxis: `y${n}`, text: asked.map(hoverName), customdata: asked.map((trial) => trial.number),
      hovertemplate: "%{text}<br>%{y:.4f}<extra></extra>",
      marker: { size: 6, opacity: 0.8, color: asked.map((trial) => trial.number), colorscale: [[0, color("quiet")], [1, color("c1")]] },
    });
    for (const { trials: lost, ...kind } of lostTrials(i))
      traces.push({ ...kind, x: lost.map(shownAt(parameter, i)), xaxis: `x${n}`, yaxis: `y${n}`, hovertemplate: "%{text}<br>%{y:.4f}<extra></extra>" });
    axes[`xaxis${n}`] = parameterAxis(parameter);
    axes[`yaxis${n}`] = { matches: i ? "y" : undefined, showticklabels: i % columns === 0,
      title: i % columns === 0 ? { text: plain(DATA.metric) } : undefined };
  });
  draw("plot-slices", traces, { ...axes, grid: { rows, columns, pattern: "independent", xgap: 0.12, ygap: 0.32 } });
}
