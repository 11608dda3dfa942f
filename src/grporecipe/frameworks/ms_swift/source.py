"""Read the version of ms-swift from its own source in a repository, and the checks that this source
has.
"""

from pathlib import Path

from grporecipe.model.framework import Vendored
from grporecipe.model.recipe import Recipe
from grporecipe.reading.python.vendored import code_of, missing_checks, stated_version

# TRL's own checks run too
_TRL = r"\bHfGRPOConfig(?:\.__post_init__|\):[\s\S]{0,300}?super\(\)\.__post_init__)"
# The code on which a rule rests, as every release has it that the rule judges, and the files that
# hold it.
CHECKS = {
    "GB101": rf"\bnot in possible_values\b|%\s*num_generations\b|{_TRL}",
    "GB106": rf"\bgeneration_batch_size\s*%|{_TRL}",
    "GB501": rf"\bgeneration_batch_size\s*!=|{_TRL}",
    "GE501": r">=\s*total_eval_batch_size\b",
    "GL503": r"does not support loss_type",
    "GT502": r"vllm_mode is required",
    "GT503": r"GRPO with vLLM is not compatible with `device_map`",
}
CHECKED_IN = (
    "swift/llm/argument/rlhf_args.py",
    "swift/arguments/rlhf_args.py",
    "swift/trainers/rlhf_arguments.py",
    "swift/trainers/rlhf_trainer/grpo_trainer.py",
    "swift/rlhf_trainers/arg*.py",
    "swift/rlhf_trainers/grpo_trainer.py",
)


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the version of ms-swift in this source, and what it does not check. Its keys are those
    of the release.
    """
    unchecked = missing_checks(code_of(folder, CHECKED_IN), CHECKS, "grpo_trainer.py")
    return Vendored(None, stated_version(folder, ("swift/version.py",)), unchecked=unchecked)
