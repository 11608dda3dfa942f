"""A stub of verl's trainer for tests: it connects to Ray as verl does, uses every GPU, and writes
down what it sees.
"""

from pathlib import Path

LAUNCH = """{python} -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.optim.lr=1e-6 \\
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=8 \\
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm \\
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 trainer.total_epochs=15 \\
trainer.n_gpus_per_node=2 trainer.nnodes=2 ray_kwargs.ray_init.num_cpus=5
"""
MAIN = """
import json, os, sys, time
import ray

resumed = os.path.exists("seen.json")
given = dict(word.lstrip("+").partition("=")[::2] for word in sys.argv if "=" in word)
ray.init(address="auto", num_cpus=None if given["ray_kwargs.ray_init.num_cpus"] == "null" else 5)
wanted = int(given["trainer.nnodes"]) * int(given["trainer.n_gpus_per_node"])


@ray.remote(num_gpus=1, num_cpus=1)
def use_gpu(others):
    time.sleep(1)  # so that no process gets two GPUs in turn
    return [os.environ[name] for name in ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "OF_TRIAL")]


used = ray.get([use_gpu.remote(wanted) for _ in range(wanted)])
seen = {"used": sorted(used), "resources": ray.cluster_resources(), "arguments": given, "address": os.environ["RAY_ADDRESS"]}
with open("seen.json", "w") as file:
    json.dump(seen, file)
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as file:
    file.write(json.dumps({"step": 1, "data": {"actor/pg_loss": 0.1, "val-core/x/reward/mean@1": 0.5}}) + chr(10))
time.sleep(0 if resumed else float(os.environ.get("SECONDS_TO_RUN", 0)))
sys.exit(int(os.environ.get("EXIT_CODE", 0)))
"""


def write_stub(folder: Path, python: Path) -> tuple[str, ...]:
    """Write the stub and its launch; return the words of a sweep, which end with its command."""
    package = folder / "verl" / "trainer"
    package.mkdir(parents=True)
    (package / "main_ppo.py").write_text(MAIN)
    (folder / "run.sh").write_text(LAUNCH.format(python=python))
    own = ("trainer=command", "trainer.command='bash run.sh'", f"trainer.python={python}")
    return (*own, "name=s", "+trainer.environment.OF_TRIAL=x")
