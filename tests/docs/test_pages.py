"""The pages of docs/: links lead somewhere, commands exist, and following them gives what they
show.
"""

import html
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from omegaconf import DictConfig
from typer.main import get_command

from command_server import shims
from grposweep.cli import build_app
from grposweep.config.compose import to_experiment
from grposweep.search.parse import bracket_points
from support import PROJECT, load_script, sampled

DOCS = PROJECT / "docs"
PACKAGE = PROJECT / "src" / "grposweep"
ROOTS = (PROJECT, PROJECT / "src", PACKAGE, PROJECT / "src" / "grporecipe")
PAGES = sorted(DOCS.rglob("*.md"))
FOLLOWED = [page for page in (*PAGES, PROJECT / "README.md") if "```console\n" in page.read_text()]
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!\w+://)([^)#\s]*)#([^)\s]+)\)")

# pages whose commands train for minutes, which are followed before a release
TRAINING = ("tutorial.md", "own_script.md")
# a tenth of the tutorial's; `make docs` trains it all
SHORTER = (
    "schedule.budget_completions=640",
    "task.eval_prompts=64",
)


def named(page: Path) -> str:
    """A page under its path in docs/, or README.md."""
    return str(page.relative_to(PROJECT))


@pytest.fixture(scope="module")
def follow() -> ModuleType:
    """docs/follow.py."""
    return load_script("follow")


def test_on_the_site_a_link_to_a_file_outside_docs_leads_to_the_repository() -> None:
    """With its anchor; links between pages stay."""
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(DOCS / "guides" / "kl.md")))
    config = SimpleNamespace(repo_url="https://host/repo")
    text = (
        "[a](../../CONTRIBUTING.md#tiers) [b](../../benchmarks) [c](slurm.md#x) "
        "[d](https://e.org/f)"
    )
    wanted = (
        "[a](https://host/repo/blob/main/CONTRIBUTING.md#tiers) "
        "[b](https://host/repo/tree/main/benchmarks)"
    )
    changed = load_script("site_hooks").on_page_markdown(text, page=page, config=config, files=None)
    assert changed == f"{wanted} [c](slurm.md#x) [d](https://e.org/f)"


@pytest.mark.parametrize("page", [*PAGES, *PROJECT.glob("*.md")], ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """Files, or addresses."""
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that it sets itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    shown = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head)
        for head in re.findall(r"^#{1,6} +(.+)$", text, re.MULTILINE)
    ]
    own = re.findall(r'<a id="([^"]+)">', text)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", head.strip().lower())) for head in shown} | {
        *own
    }


def printed(svg: str) -> list[str]:
    """The texts of a terminal's picture."""
    return [html.unescape(text) for text in re.findall(r"<text [^>]*-line-[^>]*>(.*?)</text>", svg)]


@pytest.mark.slow
def test_the_recording_shows_what_its_command_prints() -> None:
    """Today; make it again with: python docs/pictures.py --recording."""
    now = load_script("pictures").record()
    assert printed(now) == printed((DOCS / "lint.svg").read_text())
    # a preview shows it as it is
    assert "animation" not in now


def test_the_example_recipe_is_the_one_that_the_guide_lints() -> None:
    """But for its first line."""
    _, _, recipe = (DOCS / "recipe.yaml").read_text().partition("\n")
    assert f"# recipe.yaml\n{recipe}```" in (DOCS / "guides" / "lint.md").read_text()


@pytest.mark.parametrize("page", [*PAGES, *PROJECT.glob("*.md")], ids=lambda page: page.name)
def test_every_anchor_of_a_page_is_a_heading(page: Path) -> None:
    """Of the same page, or of the one that the link names."""
    links = [
        (page.parent / file if file else page, anchor)
        for file, anchor in ANCHOR.findall(page.read_text())
    ]
    assert [
        (file.name, anchor)
        for file, anchor in links
        if file.suffix == ".md" and anchor not in anchors(file)
    ] == []


def test_a_missing_heading_is_found(tmp_path: Path) -> None:
    """Symbols are left out, blanks are hyphens; a comment in a block of code is no heading."""
    (tmp_path / "a.md").write_text("# A `b` & c\n\n```sh\n# no\n```\n## [D](x.md)!\n")
    assert anchors(tmp_path / "a.md") == {"a-b--c", "d"}


@pytest.mark.parametrize("package", ["grporecipe", "grposweep"])
def test_the_tree_in_contributing_has_every_folder_of_a_package(package: str) -> None:
    """And no other."""
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    _, _, tree = text.partition(f"\nsrc/{package}/ ")
    shown = re.findall(r"^  (\w+)/ ", re.split(r"^src/", tree, flags=re.MULTILINE)[0], re.MULTILINE)
    folders = {path.parent.name for path in (PROJECT / "src" / package).glob("*/__init__.py")}
    assert set(shown) == folders


def figures(page: Path) -> set[str]:
    """The numbers in a page's prose, without code and addresses."""
    prose = re.sub(
        r"^```.*?^```|\]\([^)]*\)|`[^`]*`", " ", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return {number.rstrip(".,") for number in re.findall(r"\d[\d.,]*", prose)}


def test_the_chinese_readme_has_the_figures_of_the_english_one() -> None:
    """So that neither claims what the other has corrected."""
    assert figures(PROJECT / "README.md") - figures(PROJECT / "README.zh.md") == set()


def test_each_workflow_has_a_badge_in_the_readme() -> None:
    """And no badge is of another one."""
    badges = re.findall(r"/workflows/([\w.]+)/badge", (PROJECT / "README.md").read_text())
    shipped = (PROJECT / ".github" / "workflows").iterdir()
    assert sorted(badges) == sorted(path.name for path in shipped)


def test_the_index_leads_to_every_page() -> None:
    """By one click; the index itself is left out."""
    index = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    assert [
        named(page) for page in PAGES if page.resolve() not in index and page.name != "README.md"
    ] == []


TEXTS = [*PAGES, *(PROJECT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md"))]
NAMED = re.compile(r"`((?:src|tests|benchmarks|conf|docs|slurm|sweeps)/[\w./-]+)`")
OF_PACKAGE = re.compile(r"`([a-z_]+/[\w./]*\.py)`")
# of files to write
EXAMPLES = set(
    re.findall(r"^`([\w./]+)`:$", (DOCS / "guides" / "extending.md").read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    """From the root of the repository, from src, or (``sweep/run.py``) below a package."""
    text = page.read_text()
    missing = [
        name
        for name in NAMED.findall(text)
        if not (PROJECT / name).exists() and name not in EXAMPLES
    ]
    missing += [
        name
        for name in OF_PACKAGE.findall(text)
        if name not in EXAMPLES
        and not any(
            (root / name).exists()
            for root in (PACKAGE, PROJECT, PROJECT / "src", PROJECT / "src" / "grporecipe")
        )
    ]
    assert missing == []


def commands(program: str) -> list[list[str]]:
    """The arguments of every command of the pages that begins so."""
    found = []
    for page in PAGES:
        for block in SHELL.findall(page.read_text().replace("\\\n", " ")):
            lines = [line.removeprefix("$ ") for line in block.splitlines()]
            texts = [re.split(r"\s[|>]\s", line)[0] for line in lines if line.startswith(program)]
            found += [shlex.split(text, comments=True)[len(program.split()) :] for text in texts]
    return found


@pytest.mark.parametrize("arguments", commands("grposweep "), ids=" ".join)
def test_a_command_of_the_pages_takes_its_options(arguments: list[str]) -> None:
    """As the program parses them; what they name need not be there."""
    root = get_command(build_app())
    command = root.commands[arguments[0]]  # type: ignore[attr-defined]  # typer's root is a group
    command.make_context(arguments[0], arguments[1:])


@pytest.mark.parametrize("arguments", sampled(commands("python src/run.py"), 6), ids=" ".join)
def test_a_run_of_the_pages_composes(
    compose: Callable[[list[str]], DictConfig], arguments: list[str]
) -> None:
    """Every key and option exists; of a parameter its first value, as good as any."""
    if any(argument.startswith(("--", "-sc")) for argument in arguments):
        return
    overrides = [
        first_value(bracket_points(argument)) for argument in arguments if argument != "-m"
    ]
    to_experiment(compose(overrides))


def first_value(override: str) -> str:
    """``lr=1e-4,1e-3`` at its first value; an interval at none."""
    key, _, value = override.partition("=")
    if "interval(" in value:
        return f"{key}=1e-4"
    return override if value[:1] in "[{'\"" else f"{key}={value.split(',')[0]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.thorough] * (page.name in TRAINING))
        for page in FOLLOWED
    ],
    ids=named,
)
def test_following_a_page_gives_what_it_shows(
    page: Path, follow: ModuleType, tmp_path: Path
) -> None:
    """Its files written and its commands run in order, in a fresh folder."""
    shorter = SHORTER if page.name == "tutorial.md" else ()
    now = follow.follow(page, shims(tmp_path / "bin"), *shorter)
    assert not follow.difference(page.read_text(), now, bool(shorter)), (
        f"python docs/follow.py {page}"
    )
