"""Learning rates that GRPO runs take, by what is trained: all weights, by their type, or adapters,
by the model's shape.

One function for the rules of family GA, so that no two of them contradict each other.

Sources: full fine-tuning, 23 recipes, of which 19 use 1e-6 (the others 3e-7 to 1e-5): EasyR1's
baselines, verl's DAPO, DeepScaleR, Logic-RL, Search-R1, Open-R1, ms-swift's countdown, GPG,
prime-rl. EasyR1's report on a stalled 7 B run advises 5e-6 to 1e-5. AReaL PR #1634 (1.5 B, a rate
of 1.7e-5): float32 weights diverge and do best at 6e-6, bfloat16 weights are stable. Two public
sweeps with bfloat16 weights (Qwen2.5-Math-1.5B on MATH) are best at 4e-5 and 3e-5, and collapse at
7e-5 and 1e-4 (ShibukiZero/assignment5-alignment, garg-aayush/building-from-scratch). LoRA, 12
recipes from 1e-5 to 1e-4: verl's GSM8K logs, tinker-cookbook, TRL's "LoRA Without Regret";
Fireworks offers up to 5e-4. The shape: tinker-cookbook, hyperparams.md.
"""

from typing import NamedTuple

from grporecipe.model.setting import Setting

# bfloat16 weights take about three times the rate of float32 ones
HALF = 3.0
# LoRA's, in the published runs with these rates
ALPHA = 32.0
# of the hidden states, at which the rate of adapters has a factor of 1
WIDTH = 2000
# of WIDTH / width, by the family of the model
POWERS = {"qwen": 0.0775, "llama": 0.781}


class Rates(NamedTuple):
    """Rates of one kind of training: usual in published recipes, advised in reports, and the
    highest of stable runs.
    """

    usual: float
    advised: float
    most: float

    def times(self, factor: float) -> "Rates":
        """Return all of them times a factor, with two digits."""
        return Rates(*(float(f"{rate * factor:.2g}") for rate in self))


FULL = Rates(1e-6, 5e-6, 2e-5)
ADAPTERS = Rates(3e-5, 5e-5, 5e-4)


def rounds_updates(s: Setting) -> bool | None:
    """Return whether the optimizer steps weights in half precision themselves. None if a file that
    is not read may decide it.

    DeepSpeed and accelerate's FSDP step float32 copies; verl's FSDP steps shards of the model's
    type. EasyR1 has an optimizer for bfloat16 weights that may compensate for rounding.
    """
    if s.lora or s.weights_dtype == "float32":
        return False
    if s.sharding == "none":
        may_be_sharded = s.framework.follows_trl and bool(s.given) and s.processes != 1
        if may_be_sharded:
            return None
        return True
    if s.sharding != "fsdp" or s.runtime.upcasts:
        return False
    if s.framework.name == "easyr1":
        return None
    return True


def rates_for(s: Setting) -> Rates:
    """Return the rates for a setting. Rates of adapters hold for an alpha of 32; updates are scaled
    by alpha / rank.
    """
    if s.lora:
        factor = _shape(s)
        if s.lora_alpha > 0:
            factor = factor * ALPHA / s.lora_alpha
        return ADAPTERS.times(factor)
    rounds = rounds_updates(s)
    half = FULL.times(HALF)
    # Where the type is not known, the smaller rate is usual and the larger one is possible.
    if rounds is None:
        return FULL._replace(most=half.most)
    return half if rounds else FULL


def _shape(s: Setting) -> float:
    """Return the factor for the width of a model; 1 if its shape or its family is not known."""
    if s.architecture is None or s.architecture.hidden < 1:
        return 1.0
    kind = s.architecture.model_type
    return float(
        (WIDTH / s.architecture.hidden)
        ** next((POWERS[name] for name in POWERS if kind.startswith(name)), 0.0)
    )
