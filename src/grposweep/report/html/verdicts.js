// What a sweep of several objectives, or of one factor at a time, comes to.

function drawFront() {
  const chosen = document.getElementById("against"), at = chosen ? Number(chosen.value) : 0, objective = DATA.further[at];
  const trials = finished().filter((trial) => trial.further);
  if (!trials.length) return sayInstead("plot-front", "No trial has finished yet.");
  const front = trials.filter((trial) => trial.front).sort((a, b) => a.further[at] - b.further[at]);
  const others = trials.filter((trial) => !trial.front);
  const dots = (found) => ({ x: found.map((trial) => trial.further[at]), y: found.map((trial) => trial.value), text: found.map(hoverName),
    customdata: found.map((trial) => trial.number), hovertemplate: `%{text}<br>%{y:.4f} at %{x:.4g} ${plain(objective.name)}<extra></extra>` });
  // Between two trials of the front the best that one can have is the one that is not beyond.
  const line = DATA.further.length === 1 ? { mode: "lines+markers", line: { shape: objective.maximize ? "vh" : "hv", color: color("c1"), width: 1.5 } } : { mode: "markers" };
  draw("plot-front", [
    { ...dots(others), mode: "markers", name: "others", marker: { color: color("quiet"), size: 7, opacity: 0.6 } },
    { ...dots(front), ...line, name: "Pareto front", marker: { color: color("c1"), size: 11, symbol: "diamond" } },
  ], {
    showlegend: true, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
    xaxis: { title: { text: `${plain(objective.name)}, ${objective.maximize ? "maximized" : "minimized"}` }, ...numberAxis(trials.map((trial) => trial.further[at])) },
    yaxis: { title: { text: `${plain(DATA.metric)}, ${DATA.maximize ? "maximized" : "minimized"}` } },
  });
}

// Logarithms where numbers span decades.
function numberAxis(values) {
  const low = Math.min(...values), high = Math.max(...values);
  return low > 0 && high >= 20 * low ? { type: "log", exponentformat: "power", dtick: 1 } : {};
}

const VERDICTS = { better: "good", worse: "bad", tied: "quiet", unknown: "quiet" };

function drawEffects() {
  const found = DATA.effects.filter((effect) => effect.mean !== null).reverse();
  if (!found.length) return sayInstead("plot-effects", "No change can be compared with the base configuration yet.");
  document.getElementById("plot-effects").style.height = `${found.length * 34 + 90}px`;
  const ink = found.map((effect) => color(VERDICTS[effect.verdict] ?? "quiet"));
  // A trace an effect: error bars of one trace share a colour.
  const traces = found.map((effect, i) => ({
    x: [effect.mean], y: [plain(effect.name)], mode: "markers", customdata: [effect.trial], marker: { size: 10, color: ink[i] },
    error_x: { type: "data", array: [effect.half ?? 0], color: ink[i], thickness: 2, width: effect.half === null ? 0 : 5 },
    hovertemplate: `%{y}: %{x:+.4f}${effect.half === null ? "" : ` ± ${effect.half.toFixed(4)}`}, ${effect.verdict}<extra></extra>`,
  }));
  draw("plot-effects", traces, {
    xaxis: { title: { text: `effect on ${plain(DATA.metric)}` }, zeroline: true, zerolinecolor: color("ink"), zerolinewidth: 1.5, rangemode: "tozero" },
    yaxis: { type: "category", categoryorder: "array", categoryarray: found.map((effect) => plain(effect.name)) },
    margin: { l: 90, r: 16, t: 8, b: 44 },
  });
}
