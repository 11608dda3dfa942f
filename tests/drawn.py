"""Settings of all kinds, for properties that hold for every setting."""

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from grporecipe.model.architecture import Architecture
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import TRL_FRAMEWORK, Setting
from grposweep.config.fields import KEYS

# these two only make messages
NAMES = {field.name for field in fields(Setting)} - {"keys", "lines"}


SIZES = frozenset(
    {"per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size"}
)
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.sampled_from([-1, 0, 1, 2, 3, 7, 8, 16]),
    "int | None": st.sampled_from([None, -1, 0, 1, 2, 3, 7, 8, 16, 64]),
    "float": st.sampled_from([-1.0, 0.0, 0.05, 1.0, 3.0]),
    "float | None": st.sampled_from([None, -1.0, 0.0, 0.5, 2.0]),
    "bool | None": st.sampled_from([None, True, False]),
    "str": st.sampled_from(["nonsense", "group", "token", "dapo", "server", "colocate"]),
    "str | None": st.sampled_from([None, "x"]),
}
ARCHITECTURES = (None, None, Architecture(24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2"))
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "framework": st.sampled_from([TRL_FRAMEWORK, TRL_FRAMEWORK, FRAMEWORKS["ms-swift"].traits]),
    # other frameworks derive these two
    "data_processes": st.just(None),
    "prompts_per_rollout": st.just(None),
    "architecture": st.sampled_from(ARCHITECTURES),
    "gpu_memory_gib": st.sampled_from([None, None, 0.5, 4.0, 24.0]),
    "sharding": st.sampled_from(["none", "zero2", "zero3", "fsdp"]),
    "version": st.sampled_from(
        [(0, 14, 0), (0, 16, 1), (0, 17, 0), (0, 18, 0), (0, 21, 0), (0, 26, 0), (1, 16, 0)]
    ),
    "given": st.sets(st.sampled_from(sorted(NAMES)), max_size=12).map(frozenset),
    "auto": st.sampled_from([frozenset(), SIZES]),
    "unsolved": st.sampled_from([frozenset(), frozenset(), SIZES]),
    "warmup_steps": st.sampled_from([-1.0, 0.05, 3.0, 999.0]),
    "train_prompts": st.sampled_from([None, 0, 5, 100]),
    "budget_completions": st.sampled_from([None, 10, 6400]),
}


def draw_settings(cls: type[Setting] = Setting) -> st.SearchStrategy[Setting]:
    """Settings of all kinds, most of them broken in several ways; fields of other types keep their
    defaults.
    """
    drawn: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(Setting):
        kind = field.type.__name__ if isinstance(field.type, type) else str(field.type)
        if field.name in SPECIAL or kind in BY_TYPE:
            drawn[field.name] = SPECIAL[field.name] if field.name in SPECIAL else BY_TYPE[kind]
    return st.builds(cls, keys=st.just(KEYS), **drawn)
