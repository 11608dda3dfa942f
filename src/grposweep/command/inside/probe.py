"""Asks a user's command what its GRPO trainer would get, and stops it there: this runs in every
Python that the command starts.

On stand-ins (`stand_ins`), a launcher is replaced by its script, and the script runs twice with
other numbers where only the data know them, past its trainer to its end or its next trainer. What
must not happen on stand-ins ends the attempt. For real, nothing is replaced, and it ends at the
trainer. Answers are JSON files in a folder, each with one of ``record``, ``refused`` (the
configuration's own message) or ``failed``. `command.ask` then ends the command, or lets it run to
its next trainer.
"""

import atexit
import inspect
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from grporecipe.files import parse_json
from grposweep.command.inside import harm, programs, record
from grposweep.command.inside.harm import Question
from grposweep.command.inside.imports import CONFIGS, after_import
from grposweep.command.inside.stand_ins import alone, as_first_rank, note_files, read_files

OURS = ("grposweep", "grporecipe", "hydra_plugins.", "sitecustomize")
# of GRPOTrainer's arguments
ORDER = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")
TRAINERS = {
    "trl.trainer.grpo_trainer": "GRPOTrainer",
    "trl.experimental.async_grpo.async_grpo_trainer": "AsyncGRPOTrainer",
    "transformers.trainer": "Trainer",
}
# Events of audit hooks (docs.python.org, "Audit events table") that change something outside of the
# process.
CHANGES = harm.DELETIONS | {
    "os.link",
    "os.symlink",
    "shutil.copyfile",
    "shutil.copytree",
    "sqlite3.connect",
}
STARTS = frozenset(
    [
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "socket.connect",
        "socket.getaddrinfo",
        "os.kill",
    ]
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# libraries whose logs and copies of the configuration are harmless
WRITING = ("hydra.", "logging")
OWN_BATCHES = frozenset(
    [
        "__init__",
        "get_train_dataloader",
        "_get_train_sampler",
        "_prepare_inputs",
        "_generate_and_score_completions",
    ]
)


# that a script may run on stand-ins after its trainer
SECONDS_AFTER = 5


class Answers:
    """Writes the answer of this process, once."""

    def __init__(self, question: Question) -> None:
        self.question, self.folder, self.is_given = question, Path(question.answers), False
        # on stand-ins: the answer, unless there is a second trainer
        self.answer: dict[str, Any] | None = None
        self.files: set[str] = set()
        # in the second run: where its answer goes
        self.pipe: int | None = None
        # in the first run: the second run's answer
        self.other: bytes | None = None
        # folders
        self.made: list[str] = []

    def give(self, **answer: Any) -> NoReturn:
        """Write an answer, or the one that was found before, and wait for the end of the
        process.
        """
        signal.alarm(0)
        if self.answer is not None and not answer.get("several"):
            answer = self.answer
        self.is_given = True
        text = json.dumps({**answer, "seconds": time.process_time()}, default=repr).encode()
        if self.pipe is not None:
            for folder in reversed(self.made):
                with suppress(OSError):
                    Path(folder).rmdir()
            while text:
                text = text[os.write(self.pipe, text) :]
            os._exit(0)
        if self.other is not None:
            text = json.dumps(_merge(parse_json(text), parse_json(self.other or b"{}"))).encode()
        if os.environ.get("RANK", "0") == "0":
            made = self.folder / f"{os.getpid()}.part"
            made.write_bytes(text)
            made.replace(made.with_suffix(".json"))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        while not (self.folder / "continue").exists():
            time.sleep(0.02)
        os._exit(0)

    def describe(self, config: Any, trainer: Any, passed: Mapping[str, Any]) -> None:
        """Answer with the record of a trainer that is being built: for real at once, on stand-ins
        at the end of the script.
        """
        if self.answer is not None:
            self.give(**self.answer | {"several": record.users_line()})
        # what follows opens files
        self.is_given = True
        description = record.describe(config, trainer, passed)
        files = {path for path in self.files if Path(path).is_file()}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None) or ""
            if not name.startswith(OURS) and record.is_users(path) and Path(path).is_file():
                files.add(str(Path(path).absolute()))
        overrides = set()
        for kind in type(trainer).__mro__:
            own = {name: vars(kind)[name] for name in OWN_BATCHES & vars(kind).keys()}
            overrides |= {name for name, method in own.items() if _replaces_parents(method)}
        description |= {
            "own_batches": sorted(overrides),
            "unsloth": "unsloth" in sys.modules,
        }
        if _changes_batches():
            description["values"] = description["given"]
        answer = {
            "record": description,
            "files": sorted(files),
            "several": "",
        }
        if self.pipe is None and self.other is None:
            self.give(how="real", **answer)
        self.answer = {"how": "stand-ins", **answer}
        self.is_given = False
        atexit.register(self.give)
        # not in the main thread
        with suppress(ValueError):
            signal.signal(signal.SIGALRM, lambda *_: self.give())
            signal.alarm(SECONDS_AFTER)


def _replaces_parents(member: Any) -> bool:
    """Return whether the user's code defines a method that does not call its parent's."""
    code = getattr(member, "__code__", None)
    if code is None:
        return False
    return record.is_users(code.co_filename) and code.co_name not in code.co_names


def _merge(mine: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first run's answer without what differs in the second run, which is unknown."""
    mine["seconds"] += other.get("seconds", 0)
    if loss := next((answer for answer in (mine, other) if "lost" in answer), None):
        return {**loss, "seconds": mine["seconds"]}
    is_alike = [mine.get("refused"), "record" in mine] == [other.get("refused"), "record" in other]
    if "failed" in mine or not is_alike:
        reason = (
            mine.get("failed")
            or other.get("failed")
            or "it ends in another way if its data have another size"
        )
        return {"failed": reason, "seconds": mine["seconds"]}
    if "record" in mine:
        first = mine["record"]
        second = other["record"]
        unknown = set[str]()
        for part in ("values", "given"):
            names = first[part].keys() | second[part].keys()
            unknown |= {name for name in names if first[part].get(name) != second[part].get(name)}
        for part in ("values", "given"):
            first[part] = {
                name: value for name, value in first[part].items() if name not in unknown
            }
        for name in first.keys() - {"values", "given"}:
            first[name] = first[name] if first[name] == second[name] else None
        first["unknown"] = sorted(unknown)
    return mine


def install(package: str) -> None:
    """Prepare this process for the question: it is a launcher, the training, or another program,
    which runs as it is.

    ``package`` is the question's copy of the package.
    """
    question = harm.read_question(Path(package))
    answers = Answers(question)
    # the question has ended
    if not answers.folder.is_dir():
        os._exit(1)
    (answers.folder / "seen").touch()
    sys.dont_write_bytecode = True
    # its first call writes a file
    tempfile.gettempdir()
    program = programs.this_program()
    is_training = programs.may_train(program)
    if not is_training:
        programs.replace_launcher(program, question)
        if any(answers.folder.glob("*.json")):
            # a step after a training that did not happen
            os._exit(0)
    if is_training:
        _watch_end(answers)
    try:
        if is_training and question.mode == "stand-ins":
            (answers.folder / "on_stand_ins").touch()
            _run_on_stand_ins(answers, program)
        else:
            _watch(answers, is_training)
    except Exception as error:  # noqa: BLE001 - otherwise Python would continue, and the script would train
        answers.give(failed=f"{type(error).__name__}: {error}")


def _watch(answers: Answers, is_training: bool) -> None:
    """Answer for real: as soon as a trainer gets a configuration of GRPO, or before a file is
    lost.
    """
    answers.files = read_files
    # A view keeps what a step before the training overwrites.
    is_spared = frozenset() if is_training or not answers.question.kept else frozenset(["open"])

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        _note(answers, event, arguments)
        if event not in is_spared:
            _save(answers, event, arguments)

    sys.addaudithook(watch)

    def trainer(name: str) -> Callable[[Any], None]:
        def change(module: Any) -> None:
            cls = getattr(module, name)
            build = cls.__init__
            signature = inspect.signature(cls.__init__)

            def built(self: Any, *values: Any, **named: Any) -> None:
                passed = {**signature.bind_partial(self, *values, **named).arguments, **named}
                for config in _configurations(name, passed):
                    answers.describe(config, self, passed)
                build(self, *values, **named)

            cls.__init__ = built
            if name == "Trainer":
                cls.train = trained

        return change

    def trained(self: Any, *_: Any, **__: Any) -> NoReturn:
        answers.give(
            failed=(
                f"it trains with {type(self).__name__} first, which must not happen when it "
                "is asked"
            )
        )

    def data(module: Any) -> None:
        load = module.load_dataset

        def noted(*values: Any, **named: Any) -> Any:
            note_files((values, named), with_folders=True)
            return load(*values, **named)

        module.load_dataset = noted

    after_import(
        {name: _configuration(answers, cls) for name, cls in CONFIGS.items()}
        | {name: trainer(cls) for name, cls in TRAINERS.items()}
        | {"accelerate.state": alone, "datasets.load": data}
    )


def _configurations(trainer: str, passed: Mapping[str, Any]) -> list[Any]:
    """Return the configurations of GRPO that a trainer gets; the one that TRL makes if GRPOTrainer
    gets none.
    """
    configurations = list(filter(record.is_watched, passed.values()))
    if configurations or trainer != "GRPOTrainer" or passed.get("args") is not None:
        return configurations
    from trl.trainer.grpo_config import GRPOConfig

    return [GRPOConfig(f"{str(passed.get('model')).rpartition('/')[2]}-GRPO")]


def _configuration(answers: Answers, name: str) -> Callable[[Any], None]:
    """Return what watches the configurations of a module, and answers with the error that one of
    them raises.
    """

    def change(module: Any) -> None:
        if name == "TrainingArguments":
            as_first_rank(module)
        cls = getattr(module, name)
        of_trl = cls.__post_init__

        def accepted(self: Any) -> None:
            try:
                of_trl(self)
            except ValueError:
                if not _changes_batches():
                    raise

        cls.__post_init__ = accepted
        record.watch_config(cls, lambda _: None)
        check = cls.__post_init__

        def checked(self: Any) -> None:
            line = (
                "" if record.is_watched(self) or not record.is_grpo(self) else record.users_line()
            )
            try:
                check(self)
            except (ValueError, TypeError, ImportError) as error:
                if not line:
                    raise
                answers.give(refused=f"{type(error).__name__}: {error}", line=line)

        cls.__post_init__ = checked

    return change


def _changes_batches() -> bool:
    """Return whether a stand-in is in the place of Unsloth, whose own configuration has other
    defaults and adjusts the batch.
    """
    from grposweep.command.inside.stand_ins import Module

    return isinstance(sys.modules.get("unsloth"), Module)


def _run_on_stand_ins(answers: Answers, program: programs.Program) -> None:
    """Let this script run on stand-ins, first in a second process with other numbers, and then
    here.

    One after the other: a script that makes a folder may refuse one that exists.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    from grposweep.command.inside import stand_ins

    record.own_files.add(program.file)

    class Trainer(stand_ins.Thing):
        """Stand-in of every trainer."""

        def __init__(self, *values: Any, **named: Any) -> None:
            passed = {**dict(zip(ORDER, values, strict=False)), **named}
            names = [kind.__name__ for kind in type(self).__mro__]
            name = "GRPOTrainer" if "GRPOTrainer" in names else ""
            configs = _configurations(name, passed)
            for config in configs:
                answers.describe(config, self, passed)
            if not configs:
                (answers.folder / f"other.{names[0]}").touch()

    stand_ins.stand_in(Trainer)
    for module, cls in CONFIGS.items():
        if module in sys.modules:
            _configuration(answers, cls)(sys.modules[module])
        else:
            after_import({module: _configuration(answers, cls)})
    answers.files = stand_ins.read_files
    source, target = os.pipe()
    if os.fork():
        os.close(target)
        answers.other = b"".join(iter(lambda: os.read(source, 65536), b""))
        # what is named by the time of day has another name in the next second
        if re.search(time.strftime(r"%M\D?%S|%s").encode(), answers.other):
            time.sleep(1)
    else:
        answers.pipe = target
        stand_ins.SIZE.reverse()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
    sys.addaudithook(lambda event, arguments: _guard(answers, event, arguments))


def _watch_end(answers: Answers) -> None:
    """Answer if the script fails before its trainer, so that nothing runs after it."""
    show = sys.excepthook
    leave = sys.exit

    def failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        show(kind, error, trace)
        answers.give(failed=f"{kind.__name__}: {error}")

    def left(code: Any = None) -> NoReturn:
        if code not in (None, 0):
            answers.give(failed=f"it leaves with {code}")
        leave(code)

    sys.excepthook = failed
    sys.exit = left


def _note(answers: Answers, event: str, arguments: tuple[Any, ...]) -> bool:
    """Note a data file that is opened for reading. Return whether a file is opened for writing."""
    if (
        event != "open"
        or answers.is_given
        or not isinstance(arguments[0], (str, bytes, os.PathLike))
    ):
        return False
    if int(arguments[2] or 0) & WRITES:
        if int(arguments[2]) & os.O_CREAT:
            harm.note_made(answers.question, arguments[0])
        return True
    path = str(Path(os.fsdecode(arguments[0])).absolute())
    if (
        record.is_users(path)
        and not path.startswith(programs.SYSTEM)
        and not path.endswith((".py", ".pyc", ".so"))
    ):
        answers.files.add(path)
    return False


def _save(answers: Answers, event: str, arguments: tuple[Any, ...]) -> None:
    """End the attempt before the user's own code deletes, moves or overwrites what was there
    before.
    """
    if event == "os.mkdir" and not answers.is_given and not os.path.lexists(arguments[0]):
        answers.made.append(os.path.abspath(arguments[0]))  # noqa: PTH100 - a text
        harm.note_made(answers.question, arguments[0])
    if event not in harm.DELETIONS and event != "open":
        return
    paths = [] if answers.is_given else harm.changed_paths(answers.question, event, arguments)
    if not paths or not _is_direct():
        return
    if loss := harm.find_loss(answers.question, paths, event == "open"):
        # what follows opens files
        answers.is_given = True
        answers.give(**loss, line=record.users_line())


def _is_direct() -> bool:
    """Return whether the user's code, and no library but Python's own, is what changes a file. An
    import writes caches.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and programs.is_of_python(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file in programs.TYPED or record.is_users(file)


def _guard(answers: Answers, event: str, arguments: tuple[Any, ...]) -> None:
    """End the attempt before anything happens on stand-ins that is not harmless."""
    _save(answers, event, arguments)
    is_change = _note(answers, event, arguments) or event in CHANGES
    if answers.is_given or not (is_change or event in STARTS):
        return
    what = str(arguments[0])[:200] if arguments else ""
    if is_change and _is_harmless(answers.question, what):
        return
    line = record.users_line()
    answers.give(failed=f"{line}: {event} {what} must not happen on stand-ins")


def _is_harmless(question: Question, path: str) -> bool:
    """Return whether a change is in a folder for temporary files, or made by a library that writes
    logs.
    """
    if path == ":memory:" or harm.is_temporary(question, harm.absolute(path)):
        return True
    frame: Any = sys._getframe(2)
    while frame is not None and not record.is_users(frame.f_code.co_filename):
        if str(frame.f_globals.get("__name__", "")).startswith(WRITING):
            return True
        frame = frame.f_back
    return False
