"""Stand-ins for what a training script needs before its trainer: torch, models, data, trainers, and
what is not installed.

TRL's and transformers' own configurations, parsers and command lines are real. Numbers that only
the data know are `SIZE`, which differs between the two runs of a script, so a value that depends on
them differs too.
"""

import dis
import importlib.abc
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from grposweep.command.inside import record

# Never imported: they take seconds, or would load, download or start something.
HIDDEN = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "peft",
        "datasets",
        "vllm",
        "accelerate",
        "wandb",
        "deepspeed",
        "pandas",
        "scipy",
        "sklearn",
        "unsloth",
        "unsloth_zoo",
        "flash_attn",
        "bitsandbytes",
        "liger_kernel",
        "triton",
        "xformers",
        "tensorflow",
        "jax",
        "flax",
        "mlflow",
        "swanlab",
        "tensorboard",
        "PIL",
        "matplotlib",
        "evaluate",
        "pyarrow",
        "polars",
        "duckdb",
    ]
)
# Of transformers: classes that need no torch to be imported, but a hub or the model's files to be
# used.
LOADING = (
    "AutoModel",
    "AutoTok",
    "AutoProc",
    "AutoConfig",
    "AutoFeature",
    "AutoImage",
    "BitsAndBytes",
    "GPTQ",
    "GenerationConfig",
)
# modules, by their ends
REAL_OF_TRL = ("_config", "_compat", "_lazy_module", "import_utils", "_hf_argparser")
PACKAGES_OF_TRL = ("trl", "trl.trainer", "trl.experimental", "trl.scripts")
OPERATORS = (
    "getitem",
    "enter",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "neg",
    "or",
    "and",
)
# of a folder of data
MOST_FILES = 1000
RANKS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK")
# what a stand-in counts, here and in the other run
SIZE = [100, 1009]
# files that a stand-in was asked to load
read_files: set[str] = set()
# top-level packages with stand-ins
imported: set[str] = set()


class AnyClass(type):
    """A class whose every attribute is a stand-in."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Thing.named(name)


class Thing(metaclass=AnyClass):
    """A value, or a class of a library, with which anything can be done."""

    def __init__(self, *values: Any, **named: Any) -> None:
        note_files((values, named))
        vars(self).update(named)

    @classmethod
    def named(cls, name: str, **more: Any) -> "Thing":
        """Return a stand-in for an attribute."""
        made = object.__new__(Thing)
        vars(made).update(more, __name__=name)
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("num_processes", "world_size"):
            return processes()
        if name in ("process_index", "local_process_index", "local_rank", "rank"):
            return 0
        return Thing.named(name)

    def __call__(self, *values: Any, **named: Any) -> Any:
        name = vars(self).get("__name__", "")
        note_files((values, named), with_folders=name.startswith("load_"))
        # trl trainer/utils.py
        if name == "get_peft_config":
            return adapter_of(*values, **named)
        if name in ("get_world_size", "get_rank", "get_local_rank"):
            return processes() if name == "get_world_size" else 0
        loaded = (*values, named.get("pretrained_model_name_or_path"), named.get("model_name"))
        if name == "from_pretrained" and isinstance(first := next(filter(None, loaded), None), str):
            return Thing.named(name, name_or_path=first)
        # get_peft_model(model, ...)
        for same in (*values[:1], named.get("model")):
            if isinstance(same, Thing):
                return Thing.named(name, **_model_of(same))
        return Thing.named(name)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        code = frame.f_code.co_code
        at = frame.f_lasti
        # model, tokenizer = ...: as many as there are names
        unpacks = dis.opname[code[at]] == "UNPACK_SEQUENCE"
        size = code[at + 1] if unpacks else SIZE[0]
        return iter([Thing.named("", **_model_of(self)) for _ in range(size)])

    def __repr__(self) -> str:
        return f"<unknown {SIZE[0]}>"

    def __hash__(self) -> int:
        return id(self)


def _model_of(thing: Thing) -> dict[str, Any]:
    return {name: value for name, value in vars(thing).items() if name == "name_or_path"}


def _set_operators() -> None:
    for one in OPERATORS:
        setattr(Thing, f"__{one}__", lambda *_: Thing.named(""))
    for one in ("len", "int", "index"):
        setattr(Thing, f"__{one}__", lambda _: SIZE[0])
    Thing.__float__ = lambda _: float(SIZE[0])  # type: ignore[attr-defined]
    # the other answer in the other run
    for one in ("lt", "gt", "le", "ge", "contains", "eq"):
        setattr(Thing, f"__{one}__", lambda *_: SIZE[0] > 500)
    for one, value in {"bool": True, "exit": None, "setitem": None, "delitem": None}.items():
        setattr(Thing, f"__{one}__", lambda *_, value=value: value)


_set_operators()


def adapter_of(model_args: Any) -> Any:
    """Return a stand-in for the adapter that TRL's ModelConfig asks for, or None."""
    renamed = {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "modules_to_save": "lora_modules_to_save",
    }
    values = {name: getattr(model_args, renamed.get(name, name), None) for name in record.ADAPTER}
    return Thing(**values) if model_args.use_peft else None


def note_files(values: Any, with_folders: bool = False) -> None:
    """Note the files, and those of folders, that are named among the arguments of a call."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        for value in values[:MOST_FILES]:
            note_files(value, with_folders)
    elif isinstance(values, (str, Path)):
        path = Path(values)
        # a prompt, which is no path
        with suppress(OSError, ValueError):
            if path.is_file():
                read_files.add(str(path.absolute()))
            elif with_folders and values and path.is_dir():
                files = (each for each in path.rglob("*") if each.is_file())
                read_files.update(str(each.absolute()) for each in islice(files, MOST_FILES))


class Module(types.ModuleType):
    """A module whose every name is a stand-in: a class if it begins with a capital letter,
    otherwise a function or value.
    """

    __path__: list[str] = []  # noqa: RUF012 - what the import system reads
    # the class behind every trainer
    trainer: ClassVar[type] = Thing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name[0].isupper():
            made: Any = Thing.named(name)
        else:
            base = Module.trainer if name.endswith("Trainer") else Thing
            made = AnyClass(name, (base,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find stand-ins: first in line for what is hidden, last in line for what a script imports and
    is not installed.
    """

    def __init__(self, is_last: bool) -> None:
        self.is_last = is_last

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - the protocol's
        top = name.partition(".")[0]
        if self.is_last:
            if top not in imported and not _from_user():
                return None
        elif top in HIDDEN:
            if top not in imported and not _from_user():
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        elif not _is_hidden_in_trl(name):
            return None
        if name.startswith("trl."):
            top = name
        imported.add(top)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: ``__getattr__`` makes each name."""


def _is_hidden_in_trl(name: str) -> bool:
    if (
        not name.startswith("trl.")
        or name in PACKAGES_OF_TRL
        or name.startswith(("trl.scripts.", "trl.cli"))
    ):
        return False
    is_package = (
        name.startswith("trl.experimental.")
        and name.count(".") == 2
        and name != "trl.experimental.utils"
    )
    return not is_package and not name.endswith(REAL_OF_TRL)


def _from_user() -> bool:
    """Return whether the import that is running is in a file of the user's."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and (
        "importlib" in frame.f_code.co_filename or "<frozen" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame is not None and record.is_users(frame.f_code.co_filename)


def stand_in(trainer: type[Thing]) -> None:
    """Put the stand-ins in place, with ``trainer`` behind every trainer, and import the
    configurations.
    """
    Module.trainer = trainer
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name.partition(".")[0] in HIDDEN else find(name, package)

    importlib.util.find_spec = find_spec
    sys.meta_path.insert(0, Finder(False))
    import transformers
    import transformers.training_args as base
    import trl.trainer.grpo_config  # noqa: F401  # its two runs share the import

    # only now: libraries try imports of their own
    sys.meta_path.append(Finder(True))
    _stand_in_transformers(transformers)
    as_first_rank(base)
    base.torch = Thing()
    base.requires_backends = lambda *_: None
    import huggingface_hub

    for name in ("login", "notebook_login", "interpreter_login"):
        setattr(huggingface_hub, name, lambda *_, **__: None)


def as_first_rank(base: Any) -> None:
    """Have the configurations judge as the first process of the launch, on a GPU with bfloat16,
    also on a machine without one.
    """
    for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
        if hasattr(base, name):
            setattr(base, name, lambda *_: True)
    values = {"world_size": processes(), "n_gpu": 1, "process_index": 0, "local_process_index": 0}
    for name, value in {**values, "device": types.SimpleNamespace(type="cuda", index=0)}.items():
        setattr(base.TrainingArguments, name, property(partial(_given, value)))


def _given(value: Any, _: Any) -> Any:
    return value


def alone(module: Any) -> None:
    """Have accelerate's state know the processes of the launch without waiting for them: no other
    one was started.
    """
    cls = module.PartialState
    build = cls.__init__

    def built(self: Any, *values: Any, **named: Any) -> None:
        ranks = processes()
        before = {name: os.environ.pop(name) for name in RANKS if name in os.environ}
        try:
            build(self, *values, **named)
        finally:
            os.environ.update(before)
        self.num_processes = ranks

    cls.__init__ = built


def processes() -> int:
    """Return the number of training processes of this launch."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def _stand_in_transformers(transformers: Any) -> None:
    """Replace what needs torch (placeholders that raise at their use) or a hub."""
    lazy: Any = type(transformers)
    get = lazy.__getattr__
    made = dict[str, Any]()

    def stand_in(module: Any, name: str) -> Any:
        value = None if name.startswith(LOADING) else get(module, name)
        if value is not None and type(value).__name__ != "DummyObject":
            return value
        base = Module.trainer if name.endswith("Trainer") else Thing
        value = made.setdefault(name, AnyClass(name, (base,), {"__module__": "transformers"}))
        setattr(module, name, value)
        return value

    lazy.__getattr__ = stand_in
    for name in [name for name in vars(transformers) if name.startswith(LOADING)]:
        delattr(transformers, name)
    transformers.set_seed = lambda *_, **__: None
