// Completions of one trial: before training next to those of an evaluation. Texts are a model's: only ever textContent.

const element = (name, text, kind = "") => Object.assign(document.createElement(name), { textContent: text, className: kind });
const reward = (value) => (value === null ? "none" : String(Number(value.toPrecision(3))));

function factsOf(said) {
  const parts = Object.entries(said.parts);
  return [`reward ${reward(said.reward)}`, ...(parts.length > 1 ? parts.map(([name, value]) => `${name} ${reward(value)}`) : []),
    ...(said.truncated ? ["cut off"] : []), ...(said.template ? ["template"] : [])].join(", ");
}

function saidBlock(title, said) {
  const block = element("div", "", "said-block");
  block.append(element("h4", title));
  for (const sample of said) {
    block.append(element("pre", sample.text || "(nothing)", sample.template ? "template" : ""), element("small", factsOf(sample)));
  }
  if (!said.length) block.append(element("small", "not kept"));
  return block;
}

function showSaid() {
  const trial = DATA.completions[Number(document.getElementById("said-trial").value)];
  const slider = document.getElementById("said-step"), place = Math.min(Number(slider.value), trial.evaluations.length - 1);
  const start = trial.evaluations.find((evaluation) => evaluation.step === 0), now = trial.evaluations[place];
  const value = now.value === null ? "" : `, ${DATA.metric} ${label(now.value)}`;
  document.getElementById("said-at").textContent =
    `step ${now.step}${value}${now.step === trial.at ? " (the objective)" : ""}; ${place + 1} of ${trial.evaluations.length}`;
  const warning = document.getElementById("said-warning");
  warning.hidden = !trial.warning;
  warning.textContent = trial.warning;
  const prompts = [...new Set(now.said.map((sample) => sample.prompt))];
  document.getElementById("said").replaceChildren(...prompts.map((prompt) => {
    const pair = element("div", "", "said-pair"), of = (evaluation) => evaluation.said.filter((sample) => sample.prompt === prompt);
    const head = element("pre", prompt, "prompt");
    pair.append(head, ...(start ? [saidBlock("before training", of(start))] : []), saidBlock(`step ${now.step}`, of(now)));
    return pair;
  }));
}

// Two completions of the evaluation that counts, in a trial's own window.
function showTrialSaid(trial) {
  const completions = DATA.completions.find((kept) => kept.number === trial.number);
  const at = completions && (completions.evaluations.find((evaluation) => evaluation.step === completions.at) ?? completions.evaluations.at(-1));
  const pairs = (at ? at.said.slice(0, 2) : []).flatMap((sample) => [element("pre", sample.prompt, "prompt"), element("pre", sample.text || "(nothing)"), element("small", factsOf(sample))]);
  document.getElementById("trial-said").replaceChildren(...(pairs.length ? [element("h3", `Completions at step ${at.step}`), ...pairs] : []));
}

function startCompletions() {
  const slider = document.getElementById("said-step");
  if (!slider) return;
  fill("said-trial", DATA.completions.map((trial, i) => [i, `${trial.number}${trial.warning ? " (see its warning)" : ""}`]), 0);
  const chosen = () => {
    const trial = DATA.completions[Number(document.getElementById("said-trial").value)];
    slider.max = trial.evaluations.length - 1;
    slider.value = trial.evaluations.findIndex((evaluation) => evaluation.step === trial.at);
    showSaid();
  };
  const move = (by) => { slider.value = Number(slider.value) + by; showSaid(); };
  document.getElementById("said-trial").addEventListener("input", chosen);
  slider.addEventListener("input", showSaid);
  document.getElementById("said-back").addEventListener("click", () => move(-1));
  document.getElementById("said-on").addEventListener("click", () => move(1));
  chosen();
}
