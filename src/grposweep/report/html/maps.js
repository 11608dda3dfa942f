// Two parameters at once, and all of them side by side.

const CELLS = 48; // of a surface, along each continuous axis
const SCALE = [[0, "#b9770e"], [0.5, "#8e6fb0"], [1, "#1f8fd6"]]; // can be read on white and on black
const ENOUGH = 20; // finished trials for a surface between them

function drawMap() {
  const [a, b] = ["across", "up"].map((id) => Number(document.getElementById(id).value));
  const known = DATA.trials.filter((trial) => lastValue(trial) !== null && trial.point[a] !== null && trial.point[b] !== null);
  const trials = known.filter((trial) => trial.value !== null);
  if (DATA.parameters.length < 2 || known.length < 3 || a === b)
    return sayInstead("plot-map", "A map needs two different parameters and three trials with a value.");
  document.getElementById("plot-map").style.height = "";
  const x = scale(a, known), y = scale(b, known);
  const surface = { x: x.cells.map(x.shown), y: y.cells.map(y.shown), z: y.cells.map((v) => x.cells.map((u) => weigh(trials, x, y, u, v))) };
  const isSmooth = x.parameter.number && y.parameter.number;
  const shared = { colorscale: "Viridis", reversescale: !DATA.maximize, colorbar: { title: { text: plain(DATA.metric), side: "right" }, thickness: 12, outlinewidth: 0 },
    hoverinfo: "skip" };
  const dots = { x: trials.map((t) => x.shown(x.at(t))), y: trials.map((t) => y.shown(y.at(t))), mode: "markers", text: trials.map(hoverName),
    customdata: trials.map((t) => t.number), hovertemplate: "%{text}<br>%{marker.color:.4f}<extra></extra>",
    marker: { size: 7, color: trials.map((t) => t.value), colorscale: "Viridis", reversescale: !DATA.maximize, line: { color: "#ffffff", width: 1 } } };
  const between = trials.length < ENOUGH ? [] : [{ ...surface, ...shared, type: isSmooth ? "contour" : "heatmap", ...(isSmooth ? { contours: { coloring: "heatmap" }, line: { width: 0.5 } } : {}) }];
  if (!between.length) dots.marker = { ...dots.marker, size: 12, showscale: true, colorbar: shared.colorbar };
  const lost = lostTrials(a).map(({ trials: unfinished, y: _, ...kind }) => {
    const both = unfinished.filter((trial) => trial.point[b] !== null);
    return { ...kind, x: both.map(shownAt(x.parameter, a)), y: both.map(shownAt(y.parameter, b)), text: both.map(hoverName), customdata: both.map((t) => t.number), hovertemplate: "%{text}<extra></extra>" };
  });
  draw("plot-map", [...between, ...lost, dots],
    { xaxis: { ...parameterAxis(x.parameter) }, yaxis: { ...parameterAxis(y.parameter), title: { text: plain(y.parameter.short) } }, margin: { l: 70, r: 10, t: 34, b: 50 } });
}

// A parameter's cells along an axis in units of its own range, and back to what the axis shows.
function scale(index, trials) {
  const parameter = DATA.parameters[index];
  if (!parameter.number) {
    const labels = parameter.labels.filter((text) => trials.some((trial) => trial.point[index] === text));
    return { parameter, cells: labels.map((_, i) => i), at: (trial) => labels.indexOf(trial.point[index]), shown: (u) => plain(labels[u]), near: 0 };
  }
  const [into, back] = parameter.log ? [Math.log10, (u) => 10 ** u] : [(v) => v, (u) => u];
  const values = trials.map((trial) => into(trial.point[index])), low = Math.min(...values), wide = Math.max(...values) - low || 1;
  const cells = Array.from({ length: CELLS }, (_, i) => i / (CELLS - 1));
  return { parameter, cells, at: (trial) => (into(trial.point[index]) - low) / wide, shown: (u) => back(low + u * wide), near: 1 };
}

// Inverse distance weights; across categories nothing is mixed.
function weigh(trials, x, y, u, v) {
  let sum = 0, weights = 0;
  for (const trial of trials) {
    const dx = x.at(trial) - u, dy = y.at(trial) - v;
    if ((!x.near && dx) || (!y.near && dy)) continue;
    const weight = 1 / ((x.near * dx) ** 2 + (y.near * dy) ** 2 + 2e-3) ** 1.5;
    sum += weight * trial.value;
    weights += weight;
  }
  return weights ? sum / weights : null;
}

function drawParallel() {
  const trials = DATA.trials.filter((trial) => lastValue(trial) !== null);
  if (!DATA.parameters.length || trials.length < 2) return sayInstead("plot-parallel", "No two trials have a value yet.");
  if (!hasWebGL()) return sayInstead("plot-parallel", "Parallel coordinates need WebGL, which this browser does not offer; the slices above show the same.");
  const asked = trials.filter((trial) => trial.point.every((value) => value !== null));
  const shown = asked.length ? asked : trials;
  const values = shown.map(lastValue), states = [...new Set(shown.map((trial) => trial.label))];
  const dimensions = DATA.parameters.map((parameter, i) => parallelAxis(parameter, shown.map((trial) => trial.point[i])));
  if (states.length > 1) dimensions.push(parallelAxis({ short: "state", labels: states }, shown.map((trial) => trial.label)));
  dimensions.push({ label: plain(DATA.metric), values });
  const font = { color: color("ink"), size: 12 };
  draw("plot-parallel", [{
    type: "parcoords", dimensions, labelfont: font, tickfont: { ...font, size: 11 }, rangefont: { color: "rgba(0,0,0,0)", size: 1 },
    line: { color: values, colorscale: DATA.maximize ? SCALE : SCALE.map(([at], i) => [at, SCALE[SCALE.length - 1 - i][1]]), showscale: false },
    unselected: { line: { color: color("line"), opacity: 0.25 } },
  }], { margin: { l: 70, r: 60, t: 50, b: 20 } });
}

function parallelAxis(parameter, values) {
  if (!parameter.number) {
    const labels = parameter.labels;
    return { label: plain(parameter.short), values: values.map((text) => labels.indexOf(text)), range: [-0.2, labels.length - 0.8],
      tickvals: labels.map((_, i) => i), ticktext: labels.map(plain) };
  }
  if (!parameter.log) return { label: plain(parameter.short), values };
  const ends = parameter.range ?? [Math.min(...values), Math.max(...values)], ticks = ticks125(...ends);
  return { label: plain(parameter.short), values: values.map(Math.log10), range: ends.map(Math.log10),
    tickvals: ticks.map(Math.log10), ticktext: ticks.map((tick) => label(tick)) };
}

// 1, 2 and 5 times the powers of ten between two positive ends; only the powers where that would be more than a dozen.
function ticks125(low, high) {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, i) => i + Math.floor(Math.log10(low)));
  const steps = powers.length > 5 ? [1] : [1, 2, 5];
  return powers.flatMap((power) => steps.map((step) => Number(`${step}e${power}`))).filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function hasWebGL() {
  return Boolean(document.createElement("canvas").getContext("webgl"));
}
