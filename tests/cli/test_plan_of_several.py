"""``grposweep plan A.yaml B.sh``: recipes of different frameworks side by side, in the same
numbers.
"""

import json
import re
from math import prod
from pathlib import Path

import pytest

from grporecipe.reading.load import Options
from grposweep.cli._plan import show_plan
from support import Printed, unwrap

TRL = """\
num_generations: 8
per_device_train_batch_size: 16
gradient_accumulation_steps: 1
steps_per_generation: 2
beta: 0.01
max_steps: 40
"""
EASYR1 = """\
data: {rollout_batch_size: 32}
worker:
  actor: {global_batch_size: 16, micro_batch_size_per_device_for_update: 16}
  rollout: {n: 8}
algorithm: {use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 0.01}
trainer: {max_steps: 20}
"""
VERL = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 trainer.total_training_steps=20 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.01 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16
"""


@pytest.fixture
def recipes(tmp_path: Path) -> list[str]:
    """The same training three times: 32 prompts of 8 completions per rollout, 16 a step, 40 steps
    on 8 GPUs.
    """
    texts = {"trl.yaml": TRL, "easyr1.yaml": EASYR1, "verl.sh": VERL}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return [str(tmp_path / name) for name in texts]


def test_one_training_in_three_frameworks_gives_one_plan(
    recipes: list[str], printed: Printed
) -> None:
    """Number by number."""
    assert show_plan(recipes, Options(processes=8, train_prompts=1000), as_json=True) == 0
    plans = [json.loads(line)["plan"] for line in printed().splitlines()]
    assert plans[0] == plans[1] == plans[2]
    assert (
        plans[0]["completions_per_rollout"],
        plans[0]["prompts_per_step"],
        plans[0]["total_steps"],
    ) == (256, 16, 40)


def test_side_by_side_plans_show_loss_and_kl(recipes: list[str], printed: Printed) -> None:
    """A column each; what EasyR1 and verl call steps is explained."""
    show_plan(recipes, Options(processes=8, train_prompts=1000), as_json=False)
    said = unwrap(printed())
    assert "learning rate 1e-06 1e-06 1e-06" in said
    assert said.count("loss, k3 x 0.01") == 3
    assert "EasyR1's steps are rollouts: trainer.max_steps" in said


@pytest.mark.parametrize("micro", [15, 16])
def test_a_plan_prints_no_product_that_is_not_equal(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch, micro: int
) -> None:
    """256 prompts are no whole steps of 96, and 16 does not divide the 60 completions of a step on
    each GPU.
    """
    monkeypatch.setenv("COLUMNS", "200")
    script = VERL.replace("batch_size=32", "batch_size=256").replace("rollout.n=8", "rollout.n=5")
    script = script.replace("ppo_mini_batch_size=16", "ppo_mini_batch_size=96")
    (tmp_path / "v.sh").write_text(
        script.replace("ppo_micro_batch_size_per_gpu=16", f"ppo_micro_batch_size_per_gpu={micro}")
    )
    show_plan([str(tmp_path / "v.sh")], Options(processes=8, train_prompts=1000), as_json=False)
    said = unwrap(printed())
    assert "completions per rollout 1,280 as set 256 prompts x 5" in said
    assert re.search(r"prompts per optimizer step 96 (B W A / G|as set) 480 / 5", said)
    assert "of these on each process 60" in said
    assert "Sizes do not divide" in said
    noted = re.findall(
        r"= (\d+) x (\d+) x (\d+) = ([\d,]+) completions per [a-z ]+, where ([\d,]+) are set", said
    )
    assert noted
    # each product that is not what is set, and no other
    for *factors, product, stated in noted:
        assert (
            prod(map(int, factors)) == int(product.replace(",", "")) != int(stated.replace(",", ""))
        )
    made = re.findall(r"([\d,]+) B W \w (\d+) x (\d+) x (\d+)", said)
    assert all(int(total.replace(",", "")) == prod(map(int, factors)) for total, *factors in made)
