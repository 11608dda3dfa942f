"""Stubs of EasyR1, verl and ms-swift for tests: they read their command lines, write logs and
checkpoints as the real ones do.

The reward is best at a learning rate of 3e-6. ``seen.json`` in the output folder has the words that
a stub got.
"""

import sys
from pathlib import Path

ON_RAY = """
import json, os, sys, time

given = {}
for word in sys.argv[1:]:
    key, _, value = word.partition("=")
    try:
        given[key.lstrip("+")] = json.loads(value)
    except ValueError:
        given[key.lstrip("+")] = value
output = given.get("OUTPUT", "checkpoints")
os.makedirs(output, exist_ok=True)
reward = 1 - abs(float(given["RATE"]) - 3e-6) * 1e5
START
assert "file" in given["trainer.logger"], given
with open(LOG, "w") as log:
    for step in range(start + 1, 5):
        time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
        log.write(json.dumps({"step": step, MEASURED}) + chr(10))
        log.flush()
        os.makedirs(f"{output}/global_step_{step}", exist_ok=True)
        TRACK
with open(f"{output}/seen.json", "w") as file:
    json.dump(sys.argv[1:], file)
"""
EASYR1 = {
    "OUTPUT": "trainer.save_checkpoint_path",
    "RATE": "worker.actor.optim.lr",
    "START": "start = int((given.get('trainer.load_checkpoint_path') or '_0').rpartition('_')[2])",
    "LOG": "f'{output}/experiment_log.jsonl'",
    "MEASURED": "'actor': {'pg_loss': 0.1}, 'val': {'reward_score': reward}",
    "TRACK": "open(f'{output}/checkpoint_tracker.json', 'w').write(json.dumps({'last_global_step': "
    "step}))",
}
VERL = {
    "OUTPUT": "trainer.default_local_dir",
    "RATE": "actor_rollout_ref.actor.optim.lr",
    "START": "tracker = f'{output}/latest_checkpointed_iteration.txt'\n"
    "start = int(open(tracker).read()) if os.path.exists(tracker) else 0",
    "LOG": "os.environ['VERL_FILE_LOGGER_PATH']",
    "MEASURED": "'data': {'actor/pg_loss': 0.1, 'val-core/x/reward/mean@1': reward}",
    "TRACK": "open(tracker, 'w').write(str(step))",
}
SWIFT = """
import os, sys
method, *words = sys.argv[1:]
if words and not words[0].startswith("--"):
    with open(words.pop(0)) as file:
        pairs = [line.split(": ") for line in file.read().splitlines()]
    words = [word for name, value in pairs for word in (f"--{name}", value)] + words
os.execv(sys.executable, [sys.executable, os.path.abspath(f"swift/cli/{method}.py"), *words])
"""
RLHF = """
import json, os, sys, time

given, name = {}, ""
for word in sys.argv[1:]:
    if word.startswith("--"):
        name = word[2:]
        given[name] = []
    else:
        given[name].append(word)
output = given["output_dir"][0]
os.makedirs(output, exist_ok=True)
reward = 1 - abs(float(given["learning_rate"][0]) - 3e-6) * 1e5
with open(f"{output}/logging.jsonl", "a") as log:
    for step in range(1, 4):
        time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
        for line in ({"reward": 0.5}, {"eval_reward": reward}):
            log.write(json.dumps({**line, "global_step/max_steps": f"{step}/3"}) + chr(10))
        log.flush()
with open(f"{output}/seen.json", "w") as file:
    json.dump(sys.argv[1:], file)
"""
LAUNCHES = {
    "easyr1": "{python} -m verl.trainer.main data.rollout_batch_size=64 data.max_prompt_length=512 "
    "data.max_response_length=512 algorithm.adv_estimator=grpo algorithm.use_kl_loss=true "
    "algorithm.kl_penalty=low_var_kl algorithm.kl_coef=1e-2 worker.actor.global_batch_size=32 "
    "worker.actor.micro_batch_size_per_device_for_update=4 "
    "worker.actor.micro_batch_size_per_device_for_experience=4 "
    "worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct worker.actor.optim.lr=1e-6 "
    "worker.rollout.n=8 worker.rollout.tensor_parallel_size=1 trainer.logger=['console','wandb'] "
    "trainer.total_epochs=15 trainer.n_gpus_per_node=1",
    "verl": "{python} -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
    "data.train_batch_size=64 actor_rollout_ref.actor.optim.lr=$RATE "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_kl_loss=true "
    "actor_rollout_ref.actor.kl_loss_coef=1e-2 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 "
    'trainer.logger=\'["console","wandb"]\' trainer.total_epochs=15 trainer.n_gpus_per_node=1',
    "ms-swift": "PATH=$PWD/bin:$PATH swift rlhf grpo.yaml --learning_rate 1e-6",
}
RECIPE = """rlhf_type: grpo
model: Qwen/Qwen2.5-7B
dataset: rows.jsonl#100
reward_funcs: accuracy
num_generations: 8
per_device_train_batch_size: 8
generation_batch_size: 16
external_plugins: rewards.py
max_steps: 3
"""


def write_framework(folder: Path, name: str, *more: str) -> None:
    """Write a stub, and ``run.sh``, which launches it as examples of the framework do; ``more`` are
    words of the launch.
    """
    files = {"run.sh": "#!/bin/bash\nset -x\nexport RATE=${RATE:-1e-6}\n"}
    files["run.sh"] += " ".join([LAUNCHES[name].replace("{python}", sys.executable), *more]) + "\n"
    if name == "ms-swift":
        files |= {"swift/cli/main.py": SWIFT, "swift/cli/rlhf.py": RLHF, "grpo.yaml": RECIPE}
        files["bin/swift"] = f'#!/bin/sh\nexec {sys.executable} swift/cli/main.py "$@"\n'
    else:
        text = ON_RAY
        for mark, code in (EASYR1 if name == "easyr1" else VERL).items():
            text = text.replace(mark, code)
        files["verl/trainer/main.py" if name == "easyr1" else "verl/trainer/main_ppo.py"] = text
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755)
