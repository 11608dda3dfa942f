"""No file of others is run by being read: not a pickle, not YAML's objects, not Python."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from grposweep.process import PROJECT

RUNS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cPickle.load",
    "dill.load",
    "joblib.load",
    "shelve.open",
    "marshal.loads",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "eval",
    "exec",
    "os.system",
    "torch.load",
    "numpy.load",
}
# Of one module and one value each: bytes that the same process has made, and no file.
OWN_BYTES = {
    ("src/grposweep/config/compose.py", "pickle.loads(_schema_bytes())"),
    ("src/grposweep/config/_loader.py", "pickle.loads(self._composed)"),
    ("src/grposweep/config/points.py", "pickle.loads(self._typed)"),
}
SAFE = {("numpy.load", "allow_pickle", False), ("torch.load", "weights_only", True)}


def unsafe_calls(source: str, name_of_file: str = "") -> Iterator[str]:
    """The calls of a module that could run what they read."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in RUNS:
            given = {
                (name, word.arg, word.value.value)
                for word in node.keywords
                if isinstance(word.value, ast.Constant)
            }
            if not given & SAFE and (name_of_file, ast.unparse(node)) not in OWN_BYTES:
                yield f"line {node.lineno}: {name}"
        if (
            isinstance(node, ast.keyword)
            and node.arg == "shell"
            and ast.unparse(node.value) != "False"
        ):
            yield f"line {node.value.lineno}: shell={ast.unparse(node.value)}"


def test_no_module_reads_a_file_in_a_way_that_may_run_it() -> None:
    """Checkpoints are read by transformers, which loads weights only."""
    found = {
        name: calls
        for path in (PROJECT / "src").rglob("*.py")
        if (calls := list(unsafe_calls(path.read_text(), name := str(path.relative_to(PROJECT)))))
    }
    # the user's own notebook, when the user's command is asked; what the trainer's class, which
    # is imported already, copies from its arguments
    inside = "src/grposweep/command/inside"
    assert found.keys() == {f"{inside}/notebook.py", f"{inside}/arrived.py"}


def test_such_a_call_is_found() -> None:
    """With the options that make it safe it is none."""
    assert list(unsafe_calls("torch.load(path, weights_only=False)\ntorch.load(path)")) == [
        "line 1: torch.load",
        "line 2: torch.load",
    ]
    assert (
        list(unsafe_calls("torch.load(path, weights_only=True)\nmodel.eval()\nrun(a, shell=False)"))
        == []
    )


class Hostile:
    """A pickle of this makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_hostile_checkpoint_runs_nothing_when_a_trainer_resumes_from_it(
    tmp_path: Path, name: str
) -> None:
    """By the trainer's own functions, as our resume calls them."""
    import torch
    from transformers import Trainer, TrainingArguments

    (tmp_path / name).write_bytes(pickle.dumps(Hostile(tmp_path / "owned")))
    arguments = TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[])
    trainer = Trainer(model=torch.nn.Linear(1, 1), args=arguments)
    trainer.create_optimizer_and_scheduler(4)
    # read after the optimizer
    if name == "scheduler.pt":
        torch.save(trainer.optimizer.state_dict(), tmp_path / "optimizer.pt")
    if name == "optimizer.pt":
        torch.save({}, tmp_path / "scheduler.pt")
    load = (
        trainer._load_rng_state
        if name == "rng_state.pth"
        else trainer._load_optimizer_and_scheduler
    )
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        # transformers has no public name for it
        load(str(tmp_path))
    assert not (tmp_path / "owned").exists()
