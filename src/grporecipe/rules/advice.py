"""GA: settings that are allowed but seldom wise. Opinions with evidence; ``--ignore GA`` switches them off.

Sources: a user's report on EasyR1 training that stalled after 30 steps (7 B model, 8 prompts per step, learning rate 1e-6);
DeepSeekMath and DAPO for settings that were published with results; "LoRA Without Regret" (Thinking Machines, 2025); what
precision and sharding cost was measured, or read in torch and TRL 1.16.
"""

from math import log

from grporecipe.model import planning
from grporecipe.model.setting import EVERY, TRL_FAMILY, Setting
from grporecipe.rules.batch import LARGE_MODEL, SIZES, judgeable
from grporecipe.rules.registry import Violation, rule

VERY_FEW_PROMPTS, FEW_PROMPTS = 2, 8  # per step; 8 is the batch of the stalled run
USUAL, TIMID, TIMID_LORA = 1e-6, 2e-7, 2e-6  # the usual rate, a fifth of it, and ten times that for LoRA
HOT, HOT_LORA = 2e-5, 2e-4  # twice the highest rate that the report advises; ten times that for LoRA
ALPHA = 32.0  # LoRA's, in the published runs with these rates
SMALLEST_REPORTED, LARGEST_REPORTED = 3.5e9, 15e9  # parameters: half and twice those of the report's model
STEEP = 5e-6  # the rate from which the report advises warmup
STEP = (*SIZES, "unsolved", "num_generations")
Facts = dict[str, object]


def _prompts_per_step(s: Setting) -> float | None:
    """Return the prompts behind one optimizer step; None while something is unknown."""
    if s.num_generations < 1 or not judgeable(s):
        return None
    completions = planning.completions_per_step(s)
    return None if completions is None else min(completions / s.num_generations, s.prompts_per_rollout or completions)


def _is_as_reported(s: Setting) -> bool:
    """Return whether all weights of a model are trained whose size is about that of the stalled run."""
    return not s.lora and s.parameters is not None and SMALLEST_REPORTED <= s.parameters <= LARGEST_REPORTED


@rule(
    "GA201",
    "warning",
    (*STEP, "given", "framework", "prompts_per_step", "prompts_per_rollout", "parameters", "lora"),
    of=EVERY,
)
def a_step_has_several_prompts(s: Setting) -> Violation | None:
    """An optimizer step over one or two prompts is mostly noise: groups that are all right or all wrong teach nothing.

    The EasyR1 report (7 B, full fine-tuning) stalled at 8 prompts per step and advises 32 to 64, so for models of half to twice
    that size up to 8 are reported. DeepSeekMath takes 16 prompts of 64 completions, DAPO 512 prompts. Agents of smaller
    models train with 4 to 8 by choice. Only recipes are judged, not grposweep experiments.
    """
    prompts = _prompts_per_step(s) if s.given else None
    if prompts is None or prompts > (FEW_PROMPTS if _is_as_reported(s) else VERY_FEW_PROMPTS):
        return None
    name = "gradient_accumulation_steps" if s.prompts_per_rollout is None else "prompts_per_step"
    if s.prompts_per_rollout is not None and s.prompts_per_rollout < (s.prompts_per_step or 0):
        name = "prompts_per_rollout"
    counts_completions = s.framework.name == "openrlhf" and name == "prompts_per_step"
    each = s.num_generations if counts_completions else 1
    return Violation(
        what=f"{s.key(name)}={getattr(s, name) * each}",
        why=f"an optimizer step averages over {prompts:g} prompt{'' if prompts == 1 else 's'} only",
        instead=f"{'Accumulate' if s.prompts_per_rollout is None else 'Take'} more; 32 prompts per step and above are common.",
        fields=(name, "num_generations"),
    )


@rule("GA202", "warning", ("learning_rate", "parameters", "lora", "lora_alpha"), of=EVERY,
      blames=("learning_rate", "lora_alpha"),
      why="{scaled}high for {model}: stable GRPO runs are reported up to {most:g}",
      instead="Try {rate:g}, with warmup.")  # fmt: skip
def the_learning_rate_is_not_hot(s: Setting) -> Facts | None:
    """Full fine-tuning above 2e-5 (LoRA: 2e-4) is beyond what stable GRPO runs report.

    The EasyR1 report advises 5e-6 to 1e-5 for 7 B, half of that limit; published runs take 1e-6 (DeepSeekMath, DAPO). LoRA
    takes about ten times the rate of full fine-tuning ("LoRA Without Regret"): published runs take 1e-5 to 1e-4 with an alpha
    of 32 (TRL's reproduction, verl, Tinker). Updates are scaled by alpha / rank, and the best rate hardly depends on the rank,
    so another alpha multiplies the rate by alpha / 32. Judged only if the model's size is known.
    """
    most, scale = (HOT_LORA, s.lora_alpha / ALPHA) if s.lora else (HOT, 1.0)
    if s.parameters is None or s.parameters < LARGE_MODEL or s.learning_rate * scale <= most:
        return None
    alpha = f"{s.key('lora_alpha')}={s.lora_alpha:g}"
    scaled = "" if scale == 1 else f"with {alpha} it acts as {s.learning_rate * scale:g} with {ALPHA:g}, "
    return {"model": _model(s), "most": most, "rate": 1e-4 / scale if s.lora else 5e-6, "scaled": scaled}


@rule("GA203", "warning", (*STEP, "learning_rate", "parameters", "lora", "warmup_steps"), of=EVERY, blames=("learning_rate",),
      why="conservative for {model}{step}", instead="Try {rate:g}{warmup}, or more prompts per step.")  # fmt: skip
def the_learning_rate_is_not_timid(s: Setting) -> Facts | None:
    """Full fine-tuning at 2e-7 or below over 8 prompts per step or fewer, or LoRA at 2e-6 or below, hardly moves the model.

    The EasyR1 report (7 B, 1e-6, 8 prompts per step) stalled, and advises 5e-6 to 1e-5 with warmup, so for models of half to
    twice that size 1e-6 is reported too. It is the usual rate of published full fine-tuning (DeepSeekMath, DAPO, nearly every
    recipe of verl), over at least 16 prompts per step. Judged up to twice the size of the report's model.
    """
    if s.parameters is None or not LARGE_MODEL <= s.parameters <= LARGEST_REPORTED:
        return None
    if not 0 < s.learning_rate <= TIMID_LORA:
        return None
    prompts = _prompts_per_step(s)
    most = USUAL if _is_as_reported(s) else TIMID
    if not s.lora and (s.learning_rate > most or prompts is None or prompts > FEW_PROMPTS):
        return None
    step = "" if prompts is None else f" and {prompts:g} prompt{'' if prompts == 1 else 's'} per step"
    warmup = "" if s.warmup_steps else " with warmup"
    return {"model": _model(s), "step": step, "rate": 1e-5 if s.lora else 5e-6, "warmup": warmup}


@rule("GA204", "warning", ("learning_rate", "parameters", "lora", "warmup_steps", "lr_scheduler_type", "version"), of=EVERY,
      blames=("warmup_steps", "learning_rate"), what="{warmup_steps}=0",
      why="{learning_rate=} applies in full from the first step",
      instead="Warm up over a twentieth of all steps{how}.")  # fmt: skip
def a_steep_start_has_warmup(s: Setting) -> Facts | None:
    """A learning rate of 5e-6 and above (LoRA: ten times that) from the first step on, before Adam's moments have settled.

    The EasyR1 report advises these rates together with warmup. Judged only if the model's size is known.
    """
    is_steep = s.learning_rate >= STEEP * (10 if s.lora else 1)
    if s.parameters is None or s.parameters < LARGE_MODEL or not is_steep or s.warmup_steps != 0:
        return None
    if not s.framework.follows_trl:
        return {"how": ""}
    # transformers before 5, which TRL takes since 1.0, refuses a share as a number of steps.
    return {"how": f": {s.key('warmup_steps')}=0.05" if s.version >= (1, 0, 0) else ": warmup_ratio=0.05"}


@rule("GA205", "warning", ("sharding", "use_vllm", "processes"), of=TRL_FAMILY, blames=("sharding", "use_vllm"),
      why="transformers then generates with sharded weights, and gathers every layer for every token: ten times slower or more",
      instead="Set {use_vllm}=true, or {sharding}=zero2.")  # fmt: skip
def generation_has_whole_weights(s: Setting) -> bool:
    """FSDP frees each layer after its forward pass, so generating by transformers sends all weights once a token.

    It works: TRL runs all ranks in step (``synced_gpus``). ZeRO-2 keeps the weights whole, ZeRO-3 gathers them once a
    rollout (``ds3_gather_for_generation``), and vLLM holds its own. Source: torch distributed/fsdp fully_shard, trl 1.16
    models/utils.py.
    """
    return s.sharding == "fsdp" and not s.use_vllm and (s.processes or 1) > 1


# The share of AdamW's intended movement that bfloat16 weights make, in 20 steps of torch.optim.AdamW.
MOVED = {1e-6: 0.016, 5e-6: 0.10, 1e-5: 0.19, 1e-4: 0.98}


@rule("GA206", "warning", ("weights_dtype", "sharding", "lora", "learning_rate", "parameters", "given", "processes"),
      blames=("weights_dtype", "learning_rate"),
      why="{learning_rate=} is too small for weights of 8 significant bits: most of its updates round to nothing (at {rate:g} "
          "AdamW makes {moved:.1%} of the intended movement)",
      instead="Set {weights_dtype}=float32 under bfloat16 autocast, shard (ZeRO and FSDP step float32 copies), use LoRA, or take "
              "a larger learning rate.")  # fmt: skip
def small_updates_are_not_rounded_away(s: Setting) -> Facts | None:
    """AdamW on weights in half precision loses small updates: an update below 1/256 of a weight rounds to nothing.

    Measured with torch on weights of deviation 0.02, 20 steps: 1.6 % of the movement of float32 weights at a learning rate of
    1e-6, 10 % at 5e-6, 19 % at 1e-5, 98 % at 1e-4. So a learning rate found with such weights acts as another one with float32
    weights. DeepSpeed and FSDP step float32 copies, peft keeps adapters of unquantized weights in float32, and TRL's own
    default is float32 weights under autocast, so none of these is affected. Adapters of quantized weights (QLoRA) are bfloat16
    (trl 1.16 grpo_trainer.py). The measurement does not apply to them, so they are not judged: half of them start at zero,
    near which bfloat16 holds small numbers. A recipe of several processes may be sharded by a file that is not read, so it is
    not judged.
    """
    is_toy = s.parameters is not None and s.parameters < LARGE_MODEL
    is_maybe_sharded = s.sharding != "none" or (bool(s.given) and s.processes != 1)
    if s.weights_dtype == "float32" or is_maybe_sharded or s.lora or is_toy or not 0 < s.learning_rate < max(MOVED):
        return None
    rate = min(MOVED, key=lambda known: abs(log(known / s.learning_rate)))
    return {"rate": rate, "moved": MOVED[rate]}


ATTENTION = frozenset(
    ["q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "query_key_value", "c_attn", "Wqkv", "q_a_proj", "q_b_proj",
     "kv_a_proj_with_mqa", "kv_b_proj"]
)  # fmt: skip


@rule("GA207", "warning", ("lora", "lora_targets", "launcher"), of=EVERY, blames=("lora_targets",), what="{set}",
      why="the adapters are in attention alone, which learns less than with the MLP at any rank",
      instead="Set {lora_targets}=all-linear, as published LoRA runs do.")  # fmt: skip
def adapters_are_in_the_mlp_too(s: Setting) -> Facts | None:
    """LoRA on attention alone, without the MLP's modules.

    "LoRA Without Regret" (Thinking Machines, 2025): attention-only LoRA does worse even if a higher rank makes up for its
    parameters; TRL's guide of the same name and the published LoRA runs of verl and Tinker adapt all linear layers. If ``trl
    grpo`` names no modules, PEFT adapts q_proj and v_proj of most models (peft 0.21 utils/constants.py).
    """
    if not s.lora or not ATTENTION.issuperset(s.lora_targets) or not (s.lora_targets or s.launcher == "trl"):
        return None
    listed = ", ".join(s.lora_targets) or "null, for which PEFT takes q_proj and v_proj"
    return {"set": f"{s.key('lora_targets')}={listed}"}


def _model(s: Setting) -> str:
    """Return the model in words."""
    assert s.parameters is not None
    return f"{'LoRA on ' if s.lora else ''}a {s.parameters / 1e9:.2g} B model"
