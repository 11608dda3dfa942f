"""Measure prompts in tokens, by any tokenizer or by the files of one, and try its chat template.
Imports no transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import nlargest, nsmallest
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Config, parse_json, read_bytes
from grposweep.schema import Experiment, Model
from grposweep.schema.registries import TASKS
from grposweep.storage.inputs import data_files
from grposweep.train.hub import local_snapshot
from grposweep.train.rewards import text_of
from grposweep.train.tasks import LARGEST, bytes_of, split_rows
from grposweep.train.tasks.conversations import in_conversation

# a prompt is far longer with as many times the tokens of others; fewer tokens than this are short
FAR, SHORT = 4, 128
# prompts that are measured in tokens: those with the most bytes
MOST_COUNTED = 1000


def longest_prompt(tokenizer: Any, prompts: Iterable[Any], template: Config | None = None) -> int:
    """Return the tokens of the longest prompt, with the chat's turns: memory and vLLM's longest
    sequence depend on it.

    ``template`` holds variables of the chat template. Of many prompts the 1,000 with the most bytes
    are measured. A character of Chinese is about a token, of English a quarter.
    """
    return max(
        len(_tokens(tokenizer, prompt, template or {}))
        for prompt in nlargest(MOST_COUNTED, prompts, key=_size)
    )


def beyond_positions(experiment: Experiment, entry: Config) -> str:
    """Return a note if the longest prompt and a completion exceed the model's positions; empty
    otherwise. Raises UserError if the prompt alone does.

    Transformers samples on, with embeddings of positions that were never trained. vLLM refuses the
    prompt.
    """
    positions = entry["model"]["positions"]
    longest = entry["longest_prompt"]
    completion = experiment.generation.max_completion_length
    if 0 < positions <= longest:
        raise UserError(
            f"the longest prompt has {longest:,} tokens, and model.path={experiment.model.path} "
            f"reads {positions:,} at most. Remove long prompts, or set a model with more positions."
        )
    if not positions or longest + completion <= positions:
        return ""
    return (
        f"the longest prompt has {longest:,} tokens and completions up to {completion:,}: more "
        f"than the {positions:,} positions of model.path={experiment.model.path}. Remove long "
        f"prompts, set generation.max_completion_length={positions - longest}, or set a model with "
        "more positions."
    )


def far_longer(tokenizer: Any, prompts: Sequence[Any]) -> str:
    """Return a note if the longest prompt has several times the tokens of 99 of 100 prompts; empty
    otherwise.
    """
    longest = nlargest(len(prompts) // 100 + 2, prompts, key=_size)
    most, usual = (len(_tokens(tokenizer, prompt, {})) for prompt in (longest[0], longest[-1]))
    if most < FAR * max(usual, SHORT):
        return ""
    return (
        f"the longest prompt has {most:,} tokens. All but {len(longest) - 1} of {len(prompts)} "
        f"prompts have at most {usual:,}. Memory is planned for the longest. Remove it from the "
        f"data if it is a mistake: {text_of(longest[0])[:60]!r}."
    )


def _size(prompt: Any) -> int:
    return len(str(prompt).encode(errors="replace"))


def _tokens(tokenizer: Any, prompt: Any, template: Config) -> Any:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return render_prompt(tokenizer, prompt, template, return_dict=True)["input_ids"]


def render_prompt(tokenizer: Any, prompt: Any, template: Config, **how: Any) -> Any:
    """Return a conversation in the chat template, up to where the model's turn begins."""
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, **how, **template)


def check_answers(experiment: Experiment, tokenizer: Any, answers: Sequence[str]) -> None:
    """Raise UserError if no completion can be one of the answers, because each has more tokens."""
    limit = experiment.generation.max_completion_length
    # a token has a letter at least
    if "exact" not in experiment.task.rewards or min(map(len, answers)) <= limit:
        return
    shortest = nsmallest(MOST_COUNTED, answers, key=len)
    # one token may begin the text
    least = min(len(_tokens(tokenizer, answer.strip(), {})) for answer in shortest) - 1
    if least > limit:
        raise UserError(
            f"generation.max_completion_length={limit}: every answer of the data has more tokens "
            f"({least} at least), so task.rewards=[exact] would be 0 for every completion. Set "
            f"generation.max_completion_length={least + 1} or more, or another reward."
        )


def without_template(experiment: Experiment) -> str:
    """Return the message for conversations and a tokenizer that has no chat template."""
    what = "prompts are conversations"
    cure = "or write the prompts as text"
    if experiment.task.chat:
        what = "task.chat=true"
        cure = "or task.chat=false and task.system_prompt=null if prompts are text"
    return (
        f"{what}, but the tokenizer of model.path={experiment.model.path} has no chat template. "
        f"Set an instruction-tuned model (model=tiny_text for a first try), {cure}."
    )


def read_tokenizer(model: Model) -> "FileTokenizer | None":
    """Return the tokenizer of a folder here or in the hub's cache; None without its files."""
    folder: Path | None = Path(model.path)
    try:
        if not Path(model.path).is_dir():
            folder = local_snapshot(model)
        return FileTokenizer.read(folder)
    except Exception:  # noqa: BLE001 - files of any content; preparation names what is wrong with them
        return None


def check_rendering(experiment: Experiment, tokenizer: Any, prompts: Iterable[Any]) -> None:
    """Raise UserError if the chat template refuses a conversation, or leaves out what the system or
    the user says.

    One conversation of each order of roles is tried.
    """
    path = experiment.model.path
    by_roles = dict[tuple[str, ...], Any]()
    for prompt in prompts:
        by_roles.setdefault(tuple(turn["role"] for turn in prompt), prompt)
    for roles, prompt in by_roles.items():
        shown = f"a conversation of {', '.join(roles)}"
        cure = "prompts with other roles"
        if experiment.task.system_prompt:
            cure = "task.system_prompt=null"
        try:
            rendered = render_prompt(
                tokenizer, prompt, experiment.model.chat_template_kwargs, tokenize=False
            )
        except Exception as error:
            # of Jinja, or what the template runs into
            raise UserError(
                f"the chat template of model.path={path} refuses {shown}: {error}. Set {cure}, "
                "or another model."
            ) from error
        if "format" in experiment.task.rewards and rendered.rstrip().endswith("<think>"):
            raise UserError(
                f"task.rewards has format, and the chat template of model.path={path} writes "
                "<think> into the prompt: no completion begins with it, so the reward is always 0. "
                "Leave it out, or set model.chat_template_kwargs so that the prompt ends before it."
            )
        said = (
            (turn["role"], turn["content"]) for turn in prompt if turn["role"] in ("system", "user")
        )
        for role, content in said:
            if isinstance(content, str) and content.strip() not in rendered:
                raise UserError(
                    f"the chat template of model.path={path} leaves out the turn of the {role} in "
                    f"{shown}: {content.strip()[:60]!r}. Set {cure}, or another model."
                )


def count_local(experiment: Experiment) -> int | None:
    """Return the tokens of the task's longest prompt, if data and tokenizer are small files here;
    None otherwise.

    Takes about a second.
    """
    task = experiment.task
    files = data_files(task)
    if not files and TASKS[task.kind].path != "unread":
        return None
    if bytes_of(files) > LARGEST:
        return None
    tokenizer = read_tokenizer(experiment.model)
    if tokenizer is None:
        return None
    try:
        train, held_out, _ = split_rows(task)
        has_template = tokenizer.chat_template is not None
        prompts = [
            in_conversation(task, row["prompt"], has_template) for row in (*train, *held_out)
        ]
        return longest_prompt(tokenizer, prompts, experiment.model.chat_template_kwargs)
    except Exception:  # noqa: BLE001 - data and templates of any content; preparation names what is wrong
        return None


@dataclass(frozen=True)
class FileTokenizer:
    """The tokenizer of a model's folder: ``tokenizer.json`` and the chat template."""

    inner: Any
    chat_template: str | None
    # special tokens that a template may name, such as bos_token
    tokens: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path | None) -> "FileTokenizer":
        """Return the tokenizer of a folder. Raises an exception if it has none in this form."""
        from tokenizers import Tokenizer

        if folder is None:
            raise FileNotFoundError
        config = parse_json(read_bytes(folder / "tokenizer_config.json"))
        file = folder / "chat_template.jinja"
        template = config.get("chat_template")
        # several by name
        if isinstance(template, list):
            template = next(
                (each["template"] for each in template if each["name"] == "default"), None
            )
        tokens = {name: value for name, value in config.items() if name.endswith("_token")}
        for name, value in tokens.items():
            if isinstance(value, dict):
                tokens[name] = value["content"]
        if file.is_file():
            template = file.read_text(encoding="utf-8")
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), template, tokens)

    def __call__(self, text: str) -> dict[str, list[int]]:
        """Return the ids of a text, as transformers' tokenizers do."""
        return {"input_ids": self.inner.encode(text).ids}

    def apply_chat_template(
        self,
        turns: Any,
        *,
        return_dict: bool,  # noqa: ARG002 - as in transformers
        **variables: Any,
    ) -> dict[str, list[int]]:
        """Return the ids of a conversation. The environment of the template is that of transformers
        (chat_template_utils.py).
        """
        # not needed where a point is refused first
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        template = environment.from_string(self.chat_template or "")
        text = template.render(messages=turns, **self.tokens, **variables)
        return {"input_ids": self.inner.encode(text, add_special_tokens=False).ids}
