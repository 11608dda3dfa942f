"""Prompts that are conversations: convert ShareGPT's turns, check every turn, and put prompts into
conversations.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json
from grposweep.schema import Task

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    # ShareGPT's speakers -> roles of chat templates
    "system": "system",
}
ROLE_AND_CONTENT = "Write each turn as an object with role and content."


def as_turns(prompt: Any) -> Any:
    """Return a prompt with ShareGPT's turns (from, value) as role and content; any other prompt as
    it is.
    """
    if not is_sharegpt(prompt):
        return prompt
    return [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in prompt]


def is_sharegpt(prompt: Any) -> bool:
    """Return whether a prompt is a conversation in ShareGPT's form."""
    return isinstance(prompt, list) and any(
        isinstance(turn, dict) and _has(turn, "from", "value") for turn in prompt
    )


def wrong_conversations(prompts: Iterable[tuple[int, Any]]) -> Iterator[tuple[list[int], str]]:
    """Yield the numbers of rows whose prompt is no usable conversation, with what is wrong and what
    to do.
    """
    wrong: dict[str, list[int]] = {}
    for number, prompt in prompts:
        if isinstance(prompt, list) and (problem := _problem(prompt)):
            wrong.setdefault(problem, []).append(number)
    for problem, numbers in wrong.items():
        yield numbers, problem


def _problem(turns: list[Any]) -> str:
    if not turns:
        return f"a conversation without turns. {ROLE_AND_CONTENT}"
    if is_sharegpt(turns):
        return _problem_of_sharegpt(turns)
    for turn in turns:
        if not isinstance(turn, dict):
            return f"a conversation with a turn that is no object. {ROLE_AND_CONTENT}"
        if not isinstance(turn.get("role"), str) or not (
            _has(turn, "content") or turn.get("tool_calls")
        ):
            return (
                f"a turn without role or content: its keys are {', '.join(map(str, turn))}. "
                f"{ROLE_AND_CONTENT}"
            )
    if not any(turn.get("content") for turn in turns if turn["role"] != "system"):
        return "a conversation in which only the system says something. Add what the user says."
    return ""


def _problem_of_sharegpt(turns: list[Any]) -> str:
    for turn in turns:
        if not isinstance(turn, dict) or not _has(turn, "from", "value"):
            return f"a turn without from or value, among others that have both. {ROLE_AND_CONTENT}"
        if turn["from"] not in ROLES:
            return (
                f"a turn from {turn['from']!r}, which is none of {', '.join(ROLES)}. "
                f"{ROLE_AND_CONTENT}"
            )
    if ROLES[turns[-1]["from"]] == "assistant":
        return (
            f"a conversation that ends with the answer of {turns[-1]['from']!r}, which the "
            "model would continue. Take this "
            "turn out of the prompt, and put its text into the column of answers."
        )
    return ""


def _has(turn: Json, *keys: str) -> bool:
    return all(turn.get(key) is not None for key in keys)


def in_conversation(task: Task, prompt: Any, has_template: bool) -> Any:
    """Return a prompt as TRL takes it: text, or turns that begin with the task's system prompt.

    ``has_template``: the tokenizer has a chat template, into which text goes unless ``task.chat``
    is set.
    """
    system = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
    if not isinstance(prompt, str):
        return [*system, *prompt]
    is_chat = has_template if task.chat is None else task.chat
    return [*system, {"role": "user", "content": prompt}] if is_chat else prompt


def check_system_prompt(task: Task, prompts: list[Any], has_template: bool | None = None) -> None:
    """Raise UserError if the task's system prompt has no place: in plain text, or in front of
    another system turn.

    ``has_template`` is None before the tokenizer is known.
    """
    if not task.system_prompt:
        return
    is_chat = has_template if task.chat is None else task.chat
    if is_chat is False and isinstance(prompts[0], str):
        reason = "task.chat=false" if task.chat is False else "the tokenizer has no chat template"
        raise UserError(
            f"task.system_prompt is set, but {reason}: a plain prompt has no system turn to put it "
            "in. Set task.chat=true and a model with a chat template, or task.system_prompt=null."
        )
    own = [
        prompt
        for prompt in prompts
        if not isinstance(prompt, str) and prompt[0]["role"] == "system"
    ]
    if own:
        raise UserError(
            f"task.system_prompt is set, but {len(own)} of {len(prompts)} prompts begin with a "
            f"system turn of their own, such as {str(own[0][0]['content'])[:60]!r}. Set "
            "task.system_prompt=null, or remove these turns."
        )
