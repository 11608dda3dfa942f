// What a sweep of one factor at a time, comes to.

// Logarithms where numbers span decades.
function numberAxis(values) {
  const low = Math.min(...values), high = Math.max(...values);
  return low > 0 && high >= 20 * low ? { type: "log", exponentformat: "power", dtick: 1 } : {};
}

const VERDICTS = { better: "good", worse: "bad", tied: "quiet", unknown: "quiet" };

function drawEffects() {
  const effects = DATA.effects.filter((effect) => effect.mean !== null).reverse();
  if (!effects.length) return sayInstead("plot-effects", "No change can be compared with the base configuration yet.");
  document.getElementById("plot-effects").style.height = `${effects.length * 34 + 90}px`;
  const ink = effects.map((effect) => color(VERDICTS[effect.verdict] ?? "quiet"));
  // A trace an effect: error bars of one trace share a colour.
  const traces = effects.map((effect, i) => ({
    x: [effect.mean], y: [plain(effect.name)], mode: "markers", customdata: [effect.trial], marker: { size: 10, color: ink[i] },
    error_x: { type: "data", array: [effect.half ?? 0], color: ink[i], thickness: 2, width: effect.half === null ? 0 : 5 },
    hovertemplate: `%{y}: %{x:+.4f}${effect.half === null ? "" : ` ± ${effect.half.toFixed(4)}`}, ${effect.verdict}<extra></extra>`,
  }));
  draw("plot-effects", traces, {
    xaxis: { title: { text: `effect on ${plain(DATA.metric)}` }, zeroline: true, zerolinecolor: color("ink"), zerolinewidth: 1.5, rangemode: "tozero" },
    yaxis: { type: "category", categoryorder: "array", categoryarray: effects.map((effect) => plain(effect.name)) },
    margin: { l: 90, r: 16, t: 8, b: 44 },
  });
}
