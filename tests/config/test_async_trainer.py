"""``trainer=async_trl``: what TRL's AsyncGRPOTrainer cannot do is refused before anything starts."""

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
