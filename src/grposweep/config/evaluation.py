"""The keys that decide how a trial is measured. Tables read them, so this module imports
nothing of ours.
"""

import re

# of generation: how the next token is drawn, and all that decides how completions are sampled
TOKEN_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
SAMPLING = ("max_completion_length", *TOKEN_SAMPLING, "generation_kwargs")


# keys of a command that say what is rewarded: TRL's, Open-R1's, ms-swift's
REWARDS = (
    r"trainer\.args\.(reward_(funcs|weights)|cosine_max_len|"
    r"cosine_(min|max)_(len_)?value_(wrong|correct)|repetition_(max_penalty|n_grams)|"
    r"soft_(max_length|cache_length|punish_cache))"
)


def is_of_reward(key: str) -> bool:
    """Return whether a key of a command says what is rewarded."""
    return bool(re.fullmatch(REWARDS, key))


def is_of_evaluation(key: str) -> bool:
    """Return whether a key decides how a trial is measured, and not only how it is trained:
    prompts, rewards, sampling.
    """
    section, _, name = key.partition(".")
    is_of_task = section == "task" and name != "train_prompts"
    is_of_sampling = section == "generation" and name in SAMPLING
    return is_of_task or is_of_sampling or is_of_reward(key)
