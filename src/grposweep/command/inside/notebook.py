"""Run the code cells of a notebook as one program, without a kernel: ``python -m
grposweep.command.inside.notebook FILE [key=JSON]``.

Lines are counted through all code cells, as lint does. Each ``key=JSON`` is a parameter of
papermill.
"""

import json
import sys
from pathlib import Path

from grporecipe.files import parse_json
from grporecipe.reading.python.source import read_source

if __name__ == "__main__":
    path, *given = sys.argv[1:]
    notebook = parse_json(Path(path).read_text(encoding="utf-8-sig"))
    pairs = [word.partition("=") for word in given]
    if pairs:
        tagged = [
            n
            for n, cell in enumerate(notebook["cells"], 1)
            if "parameters" in cell["metadata"].get("tags", ())
        ]
        source = "\n".join(f"{name} = {parse_json(value)!r}" for name, _, value in pairs)
        at, *_ = [*tagged, 0]
        notebook["cells"].insert(at, {"cell_type": "code", "metadata": {}, "source": source})
    tree = read_source(json.dumps(notebook), is_notebook=True).tree
    sys.argv[:] = [path]
    names = {"__name__": "__main__", "display": print, "get_ipython": lambda: None}
    # the user's own code
    exec(compile(tree, path, "exec"), names)
