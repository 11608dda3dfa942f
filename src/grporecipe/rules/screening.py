"""GD: problems of a batch that a screen of the untrained model shows. Nothing is reported without a matching screen.

Source: a group whose rewards are all equal has no advantage, so it adds nothing to GRPO's gradient (DAPO, arXiv 2503.14476,
section 3.2). The expected shares of groups are those of `grposweep.screening.signal`.
"""

from grporecipe.model import planning
from grporecipe.model.setting import TRL_FAMILY, Setting
from grporecipe.rules.batch import SIZES, judgeable
from grporecipe.rules.helpers import each
from grporecipe.rules.registry import rule

MOST_DEAD = 0.5  # share of optimizer steps without any group that has a signal
FEW_LIVE = 0.5  # share of groups
TRUNCATED = 0.5  # share of completions
READS = (*SIZES, "unsolved", "num_generations", "signal_shares")
Facts = dict[str, float]


def _live(s: Setting) -> Facts | None:
    """Return the share of groups with a signal, the prompts per step, those with a signal, and the share of dead steps."""
    if not s.signal_shares or s.num_generations < 1 or not judgeable(s):
        return None
    completions = planning.completions_per_step(s)
    if not completions or completions < 0:
        return None
    share = min(max(s.signal_shares[min(s.num_generations, len(s.signal_shares) - 1)], 0.0), 1.0)
    prompts = completions / s.num_generations
    return {"share": share, "prompts": prompts, "live": prompts * share, "dead": (1 - share) ** prompts}


@rule("GD101", "error", READS, blames=("num_generations", "gradient_accumulation_steps"),
      why="of {prompts:g} prompts per step, {live:.2f} have completions that differ in reward before training (groups with a "
          "signal: {share:.1%}), so {dead:.0%} of the optimizer steps would have no gradient",
      instead="Take more prompts per step or larger groups, filter the prompts (task.keep_between), or look at the reward: "
              "'grposweep screen' shows it.",
      to=(*each("num_generations", (4, 8, 16, 32, 64)), *each("gradient_accumulation_steps", (2, 4, 8, 16, 32))),
      of=TRL_FAMILY, counts="by trial")  # fmt: skip
def steps_have_a_group_with_a_signal(s: Setting) -> Facts | None:
    """At least half of the optimizer steps need a group whose rewards are not all equal.

    Groups with equal rewards have no advantage. A screen of the untrained model estimates their share at the start. A
    step has no gradient if all of its groups are such, with probability share ** prompts per step.
    """
    facts = _live(s)
    return facts if facts and facts["dead"] > MOST_DEAD else None


@rule("GD203", "warning", READS, blames=("num_generations",),
      why="{share:.0%} of the groups have completions that differ in reward before training; the others cost as much and teach "
          "nothing", of=TRL_FAMILY,
      instead="'grposweep screen' recommends a filter of prompts (task.keep_between) and a group size.")  # fmt: skip
def most_groups_have_a_signal(s: Setting) -> Facts | None:
    """Most groups should have rewards that are not all equal, by a screen of the untrained model.

    With half of them dead, half of the generated completions are wasted at the start of training.
    """
    facts = _live(s)
    return facts if facts and facts["dead"] <= MOST_DEAD and facts["share"] < FEW_LIVE else None


@rule("GD204", "warning", ("truncated_share", "max_completion_length"), blames=("max_completion_length",),
      why="{s.truncated_share:.0%} of the completions of the untrained model reach it and are cut, mostly before their answer",
      instead="Set {max_completion_length} higher, or change the prompt to get shorter answers.", of=TRL_FAMILY)  # fmt: skip
def most_completions_end(s: Setting) -> bool:
    """At least half of the completions should end before the length limit, by a screen of the untrained model."""
    return s.truncated_share is not None and s.truncated_share > TRUNCATED
