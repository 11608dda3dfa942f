"""Models of every origin: the tiny one, a local folder, the hub's cache; with and without LoRA,
from a chat template.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command_server import start_forked
from grposweep.schema import Lora, Model
from grposweep.train import _models as models
from grposweep.train import _tiny as tiny
from grposweep.train._tiny import (
    VOCABULARY,
    build_text_tokenizer,
    build_tokenizer,
    encode_sums,
    tiny_folder,
    untrained,
)
from grposweep.train.hub import OFFLINE
from support import sampled

from .conftest import MakeTrial, metrics_of, result_of
from .hub_server import REPOSITORY, Hub, files_of, serve
from .test_fake import environment
from .test_hub import server  # noqa: F401 - a fixture
from .test_prepare import write_sweep

# torch and real training: the default tier is for seconds
pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkpoint(cool_tiny: None, tmp_path: Path) -> Path:
    """A checkpoint as people have them: a folder that save_pretrained wrote, with a chat
    template.
    """
    folder = tmp_path / "checkpoint"
    shutil.copytree(tiny_folder(), folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    # Or AutoTokenizer takes it for Qwen2's, from the model type.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    return folder


def publish(checkpoint: Path, home: Path) -> str:
    """The checkpoint in the hub's cache layout under HF_HOME; its id."""
    repository = home / "hub" / "models--someone--sums"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(checkpoint, repository / "snapshots" / COMMIT)
    return "someone/sums"


def test_the_tokenizer_is_one_token_a_character() -> None:
    """And it pads on the left, where generation needs it."""
    tokenizer = build_tokenizer()
    ids = tokenizer("12+34=")["input_ids"]
    assert [VOCABULARY[token] for token in ids] == list("12+34=")
    assert tokenizer.decode(ids) == "12+34="
    assert (
        tokenizer.pad(tokenizer(["1=", "12+34="]), return_tensors="pt")["input_ids"][0].tolist()[:4]
        == [tiny.PAD] * 4
    )


def test_sums_are_encoded_as_the_tokenizer_does() -> None:
    """The warm start builds its token ids by arithmetic; GRPO's come from the tokenizer."""
    ids = encode_sums(
        torch.tensor([12, 99, 0]), torch.tensor([34, 99, 7]), torch.tensor([46, 198, 7])
    )
    for row, text in zip(ids.tolist(), ("12+34=46", "99+99=198", "00+07=7"), strict=True):
        expected = [*build_tokenizer()(text)["input_ids"], tiny.EOS]
        assert row == expected + [tiny.PAD] * (len(row) - len(expected))


@pytest.mark.usefixtures("cool_tiny")
def test_the_tiny_model_is_the_same_every_time_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Byte for byte, and the caller's random numbers are left alone."""
    first = (tiny_folder() / "model.safetensors").read_bytes()
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    monkeypatch.setenv("GRPOSWEEP_CACHE", str(tmp_path))
    assert (tiny_folder() / "model.safetensors").read_bytes() == first
    assert torch.equal(torch.get_rng_state(), state)
    assert [path.name for path in tmp_path.iterdir()] == [tiny_folder().name]


@pytest.mark.usefixtures("cool_tiny")
def test_two_processes_may_make_the_tiny_model_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first one's folder stays, the other's draft goes."""
    made = tiny_folder()
    monkeypatch.setenv("GRPOSWEEP_CACHE", str(tmp_path))

    class Slow:
        def __init__(self, *_: object) -> None: ...

        def save_pretrained(self, draft: Path) -> None:
            shutil.copytree(made, draft, dirs_exist_ok=True)
            # the other process was first
            shutil.copytree(made, tiny_folder_of(tmp_path), dirs_exist_ok=True)

    monkeypatch.setattr(tiny, "warm_start", Slow)
    assert (tiny_folder() / "config.json").is_file()
    assert len(list(tmp_path.iterdir())) == 1


def tiny_folder_of(cache: Path) -> Path:
    """Where the tiny model belongs in a cache."""
    return cache / f"tiny-{tiny.recipe_hash()}"


def test_a_local_folder_is_described(checkpoint: Path) -> None:
    """Shape without weights, padding on the left for every tokenizer."""
    loaded = models.load_model(Model(path=str(checkpoint)), checkpoint)
    assert models.read_shape(loaded.config)["parameters"] == 83648
    assert loaded.tokenizer.padding_side == "left"
    assert loaded.peft_config is None
    assert loaded.init_kwargs == {"dtype": "float32"}


def test_lora_is_pefts_own_configuration() -> None:
    """all-linear is a word to peft; a list of names is a list."""
    lora = models.build_lora(Model(lora=Lora(r=4, alpha=8)))
    assert lora is not None
    assert (lora.r, lora.lora_alpha, lora.target_modules) == (4, 8, "all-linear")
    named = models.build_lora(Model(lora=Lora(r=16, target_modules=["q_proj"])))
    assert named is not None
    assert named.target_modules == {"q_proj"}


@pytest.mark.parametrize(
    ("origin", "lora"),
    sampled([("folder", True), ("hub", False)], 2, pytest.mark.thorough),
)
def test_a_real_checkpoint_is_trained_by_its_path_or_hub_id(
    checkpoint: Path, make_trial: MakeTrial, tmp_path: Path, origin: str, lora: bool
) -> None:
    """Chat template, KL against a reference loaded again, two weighted rewards, gradient
    checkpointing.
    """
    path = publish(checkpoint, tmp_path / "hf") if origin == "hub" else str(checkpoint)
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(30)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = make_trial(
        f"model.path={path}",
        f"model.lora.r={16 * lora}",
        "model.gradient_checkpointing=true",
        "task.kind=jsonl",
        f"task.path={tmp_path}/sums.jsonl",
        "task.chat=true",
        "task.rewards=[math,format]",
        "task.reward_weights=[1.0,0.5]",
        "kl.enabled=true",
        "kl.beta=0.1",
    )
    env = {**environment(), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    if origin == "hub":
        # its client reads HF_HOME when it is imported
        run_train(str(folder), env=env)
    else:
        assert start_forked(["-m", "grposweep.train", str(folder)], env)() == 0
    assert "kl" in metrics_of(folder)[-2]
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    assert (folder / result_of(folder)["model"] / weights).is_file()


@pytest.mark.parametrize("lora", sampled([False, True], 2, pytest.mark.thorough))
def test_a_hub_model_is_downloaded_once_and_trained_without_a_network(
    checkpoint: Path, make_trial: MakeTrial, tmp_path: Path, lora: bool
) -> None:
    """By the preparation; then the hub is gone, and TRL and the reference load the prepared
    commit.
    """
    plain = [f"model.path={REPOSITORY}", "model.revision=main", "kl.enabled=true", "kl.beta=0.1"]
    overrides = [*plain, f"model.lora.r={16 * lora}", "task.train_prompts=50"]
    folder = make_trial(*overrides)
    env = online(tmp_path)
    with serve(files_of(checkpoint)) as hub:
        env["HF_ENDPOINT"] = hub.url
        write_sweep(folder.parent.parent, *overrides)
        run_train("prepare", str(folder.parent.parent), env=env)
        assert hub.downloads("model.safetensors") == 1
    run_train(str(folder), env=env)
    assert "kl" in metrics_of(folder)[-2]
    assert str(tmp_path) not in (folder.parent.parent / "prepared.json").read_text()
    if lora:
        adapter = json.loads((folder / "model" / "adapter_config.json").read_text())
        assert (adapter["base_model_name_or_path"], adapter["revision"]) == (REPOSITORY, hub.commit)


@pytest.mark.thorough
def test_data_of_the_hub_is_loaded_by_the_preparation_and_found_without_a_network(
    cool_tiny: None, make_trial: MakeTrial, tmp_path: Path
) -> None:
    """At once: the client would ask for half a minute whether there is a newer version."""
    splits = "[{split: train, path: a.jsonl}, {split: test, path: b.jsonl}]"
    card = f"---\nconfigs:\n- config_name: main\n  data_files: {splits}\n---\n"
    rows = "".join(
        json.dumps({"question": f"{n}+{n}=", "answer": f"#### {2 * n}"}) + "\n" for n in range(30)
    )
    overrides = ["task.kind=gsm8k", f"task.path={REPOSITORY}", "task.subset=main"]
    folder = make_trial(*overrides)
    write_sweep(folder.parent.parent, *overrides)
    env = online(tmp_path)
    with serve(
        {"README.md": card.encode(), "a.jsonl": rows.encode(), "b.jsonl": rows.encode()}, "datasets"
    ) as hub:
        run_train("prepare", str(folder.parent.parent), env=env | {"HF_ENDPOINT": hub.url})
        assert hub.downloads("a.jsonl") == 1
    assert "Retrying" not in run_train(str(folder), env=env | {"HF_ENDPOINT": hub.url})


def test_a_node_without_the_prepared_copy_downloads_the_same_commit(server: Hub) -> None:  # noqa: F811 - the fixture
    """Where each node has a cache of its own; the next trial there finds it and stays off the
    network.
    """
    folder = models.find_model_folder(Model(path=REPOSITORY), server.commit)
    assert (folder.name, folder.parent.name) == (server.commit, "snapshots")
    assert "HF_HUB_OFFLINE" not in os.environ
    server.asked.clear()
    assert models.find_model_folder(Model(path=REPOSITORY), server.commit) == folder
    assert (
        os.environ.pop("HF_HUB_OFFLINE"),
        os.environ.pop("HF_DATASETS_OFFLINE"),
        server.asked,
    ) == ("1", "1", [])


def test_kernels_of_the_hub_can_still_be_downloaded(server: Hub) -> None:  # noqa: F811 - the fixture
    """Preparation loads no weights, so it does not fetch them."""
    folder = models.find_model_folder(Model(path=REPOSITORY), server.commit)
    for model in (
        Model(use_kernels=True),
        Model(attn_implementation="kernels-community/flash-attn2"),
    ):
        assert models.find_model_folder(replace(model, path=REPOSITORY), server.commit) == folder
        assert "HF_HUB_OFFLINE" not in os.environ


def online(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has set nothing, with an empty cache."""
    return {name: value for name, value in environment().items() if name not in OFFLINE} | {
        "HF_HOME": str(tmp_path / "hf")
    }


def run_train(*arguments: str, env: dict[str, str]) -> str:
    """``python -m grposweep.train`` to its successful end; what it said."""
    command = [sys.executable, "-m", "grposweep.train", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_model_for_any_text_reads_bytes_and_ends_where_its_tokenizer_does() -> None:
    """Every character comes back, and both agree about the last token and the filling."""
    tokenizer = build_text_tokenizer()
    assert tokenizer.decode(tokenizer("Tom — 7 Äpfel")["input_ids"]) == "Tom — 7 Äpfel"
    config = untrained(tokenizer).config
    assert (config.eos_token_id, config.pad_token_id) == (
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
