"""The tiny model and its sums in files for another trainer: python
benchmarks/frameworks/tiny/prepare.py FOLDER.

ms-swift wants a tokenizer in which ``a`` is one token (template/base.py finds out with it what a
text begins and ends with), and that AutoTokenizer reads as the model type's own; so the word for
unknown characters is called ``a`` here.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "src")]

from grposweep.schema import Task  # noqa: E402  # found through the line above
from grposweep.train._tiny import tiny_folder  # noqa: E402  # same
from grposweep.train.tasks.arithmetic import load_pairs  # noqa: E402  # same

# prompts
HELD_OUT = 64


def prepare(folder: Path) -> None:
    """Fill a folder: model, train.jsonl, held_out.jsonl, rewards.py."""
    shutil.copytree(tiny_folder(), folder / "model", dirs_exist_ok=True)
    _rename_unknown(folder / "model")
    train, held_out = load_pairs(Task(eval_prompts=HELD_OUT))
    for name, rows in (("train", train), ("held_out", held_out)):
        lines = [
            {"messages": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]}
            for row in rows
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copy(HERE / "rewards.py", folder)


def _rename_unknown(model: Path) -> None:
    path = model / "tokenizer.json"
    content: dict[str, Any] = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    if "<unk>" in vocabulary:
        vocabulary["a"] = vocabulary.pop("<unk>")
    content["model"]["unk_token"] = "a"
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != "<unk>"
    ]
    path.write_text(json.dumps(content))
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "unk_token": "<pad>"}))


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
