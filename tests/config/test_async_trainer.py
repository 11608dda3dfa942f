"""``trainer=async_trl``: what TRL's AsyncGRPOTrainer cannot do is refused before anything starts."""

import pytest

from grporecipe.errors import UserError
from grposweep.config.compose import Session
from grposweep.config.identity import experiment_id
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.config.validate import check_experiment, find_mistakes
from grposweep.schema import Experiment

ASYNC = ("trainer=async_trl", "generation=vllm_server", "loss=bnpo", "cluster=dry_run", "cluster.gpus_per_node=2",
         "model.mixed_precision=bf16")  # fmt: skip


def base(session: Session, *overrides: str) -> Experiment:
    """An experiment of the asynchronous trainer with these overrides."""
    return Points(session.compose, [*ASYNC, *overrides]).base


def test_an_asynchronous_experiment_has_no_mistake(session: Session) -> None:
    """With full weights, with LoRA, and with FSDP."""
    check_experiment(base(session))
    check_experiment(base(session, "model.lora.enabled=true", "trainer.sharding=fsdp", "trainer.max_staleness=0"))
    check_experiment(
        base(session, "trainer.args.heartbeat_stale_after_s=60", "generation.vllm_gpu_memory_utilization=0.5")
    )


REFUSED = {
    "generation=transformers": "Set generation=vllm_server, or trainer=trl.",
    "generation=vllm_colocate": "Set generation.vllm_mode=server, or trainer=trl.",
    "loss=dapo": "has only loss_type=bnpo. Set loss=bnpo, or trainer=trl.",
    "loss=gspo": "importance_sampling_level=sequence with trainer=async_trl",
    "kl=low": "Set kl.beta=0, or trainer=trl.",
    "batch.num_iterations=2": "has only num_iterations=1.",
    "batch.steps_per_generation=4": "has only steps_per_generation=null.",
    "loss.scale_rewards=none": "has only scale_rewards=group.",
    "task.reward_weights=[0.5]": "has only reward_weights=null.",
    "model.attn_implementation=sdpa": "has only attn_implementation=null.",
    "model.mixed_precision=null": "computes in half precision, and these types compute in float32.",
    "trainer.sharding=zero3": "Set trainer.sharding=fsdp, or none.",
    "trainer.max_staleness=-1": "a number that is not negative",
    "trainer.weight_sync_steps=0": "a whole number of at least 1",
    "trainer.args.token_budget=4096": "Set batch.per_device_train_batch_size instead.",
    "trainer.args.max_staleness=2": "Set trainer.max_staleness instead.",
    "trainer.args.disable_dropout=true": "AsyncGRPOConfig of TRL 1.16.0 has no such key.",
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_the_asynchronous_trainer_cannot_do_is_bad_input(session: Session, override: str) -> None:
    """One message, with what to set instead."""
    with pytest.raises(UserError) as caught:
        check_experiment(base(session, override))
    assert REFUSED[override] in str(caught.value)


def test_all_mistakes_are_named_at_once(session: Session) -> None:
    """And a server that is missing is one mistake."""
    found = find_mistakes(Points(session.compose, ["trainer=async_trl", "kl=low", "generation=transformers"]).base)
    assert [message.partition("=")[0] for message in found] == ["kl.beta", "loss.loss_type", "generation.use_vllm"]


def test_the_allowed_age_is_part_of_a_trial_only_for_this_trainer(session: Session) -> None:
    """So staleness can be searched, and trials of other trainers keep their identities."""
    known = [
        experiment_id(found, read_setting(found)) for found in (base(session), base(session, "trainer.max_staleness=0"))
    ]
    assert known[0] != known[1]
    others = [Points(session.compose, [f"trainer.max_staleness={age}"]).base for age in (4, 0)]
    assert len({experiment_id(found, read_setting(found)) for found in others}) == 1
