"""Healing an attempt that ran out of GPU memory: the same optimizer steps in smaller micro-batches.

A loss that is a mean of equal parts can be split further; which ones are says ``compute_loss`` in trl 1.16
trainer/grpo_trainer.py. ``grpo`` and ``sapo`` average over completions, ``dr_grpo`` and ``luspo`` divide by their number,
``dapo``, ``cispo`` and ``vespo`` by the tokens of the whole accumulation; ``bnpo`` divides by the tokens of one micro-batch.
"""

from collections.abc import Collection

from grposweep import plan
from grposweep.rules import check, errors
from grposweep.setting import Setting

SPLITTABLE = frozenset({"grpo", "sapo", "dr_grpo", "luspo", "dapo", "cispo", "vespo"})

Changes = dict[str, int]  # of the batch: its fields and ours have the same names


def heal(s: Setting, ignore: Collection[str] = ()) -> Changes | None:
    """Half the per-device size (a third of 3, a fifth of 5, ...) and as many times the accumulation and an explicit
    ``steps_per_generation``; None where that is impossible, invalid, or another loss.

    ``s`` is realised. A rollout's completions stay what they were, and so does the memory that generating them needs.
    """
    if s.loss_type not in SPLITTABLE or s.use_liger_kernel:
        return None
    factor = next((n for n in range(2, s.per_device_train_batch_size + 1) if not s.per_device_train_batch_size % n), 1)
    if factor == 1:
        return None
    changes = {
        "per_device_train_batch_size": s.per_device_train_batch_size // factor,
        "gradient_accumulation_steps": s.gradient_accumulation_steps * factor,
    }
    if s.steps_per_generation is not None:
        changes["steps_per_generation"] = s.steps_per_generation * factor
    healed = s.altered({**changes, "auto": s.auto - plan.TRAIN_SIZES})
    return (
        None
        if {p.code for p in errors(check(healed, ignore))} - {p.code for p in errors(check(s, ignore))}
        else changes
    )
