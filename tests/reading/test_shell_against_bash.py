"""Our reading of shell scripts against bash itself: the same commands, with the same words, in the
same order.

Only scripts that stand here, or that the test itself makes, are run; ``a`` is a stub that writes
its words down.
"""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from grporecipe.reading.shell._bash import parse_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash here")

SCRIPTS = {
    "a branch that is taken": 'X=1\nif [ "$X" = 1 ]; then a yes; else a no; fi',
    "a branch that is not taken": (
        "X=sgd\nif [[ $X == adam* ]]; then a 1\nelif [[ $X != s?d ]]; then a 2\nelse a 3; fi"
    ),
    "tests joined": 'A=1; B=\nif [[ -n "$A" && ( -z $B || $A -gt 3 ) ]]; then a both; fi',
    "negation": "if ! [ 1 -eq 2 ]; then a x; fi\n[ 1 -eq 2 ] || a y\n[ a = a ] && a z",
    "arithmetic conditions": (
        "N=3\nif (( N > 2 )); then a more; fi\n((N++))\na $N $((N > 3 ? 1 : 0))"
    ),
    "arithmetic as it was spelled before": "N=3\nM=$[N * 2]\na $M $[128] \"x$[$N+1]y\" '$[1]'",
    "a case": "M=grpo\ncase $M in\n  ppo|gae) a 1;;\n  g*) a 2 ;;\n  *) a 3;;\nesac",
    "a loop over words": "for lr in 1e-5 '1 e'; do a --lr $lr --x \"$lr\"; done",
    "a loop over a range": "for i in {1..3} {a,b}; do a $i; done",
    "a loop that is left": "for i in 1 2 3; do if [ $i = 2 ]; then break; fi; a $i; done",
    "a loop that continues": "for i in 1 2 3; do [ $i -eq 2 ] && continue; a $i; done",
    "a loop that counts": (
        "i=0\nwhile [ $i -lt 3 ]; do a $i; i=$((i + 1)); done\nuntil (( i == "
        "0 )); do ((i--)); done; a $i"
    ),
    "a function": (
        'train() { local n=$1; shift; a $n "$@" $#; }\nn=9\ntrain 1 "b c" d\ntrain 2\na $n'
    ),
    "a function with a keyword": "function go {\n a $1\n return 1\n a never\n}\ngo x || a failed",
    "arguments that are set": 'set -- 1 "2 3"\na "$@" $@ $# ${1:-x} ${3:-y}\nshift\na "$1"',
    "defaults": "A=\na ${A:-1} ${A-2}x ${B:-$A} ${B:=3} $B ${A:+4} ${B:+5}",
    "parts of a value": "F=/x/y/model.tar.gz\na ${F##*/} ${F%.*} ${F%%.*} ${F#*/} ${F/y/z}",
    "values replaced": 'F=/x/y/m.tar\na ${F//[\\/.]/_} ${#F} ${F:1:3} "${F^^}"',
    "arrays": (
        'A=(1 "2 3" # no\n  4)\nA+=(5)\na "${A[@]}" ${#A[@]} ${A[1]} "${A[@]:1:2}" "x${A[@]}y" $A'
    ),
    "empty arrays": 'A=()\na "${A[@]}" b "" ${A[@]} "${A[@]:-}"',
    "strings that are split": 'A="x=1 y=\'2 3\'"\nA="$A\n z=4"\na $A "$A" p${A}q',
    "pieces put together": "A='x '\nB=' y'\na $A$B $A'b'\"$B\" z",
    "quotes in quotes": 'a "b \'c\' \\"d\\" \\$e \\f" \'g "h" $i\' $\'j\\tk\' ""',
    "eval": 'C=\'a "1 2" $X\'\nX=5\neval $C\neval "$C" more\nC=(a 1 2); eval "${C[@]}"',
    "bash -c": "export L='a --x 1' C=\"t.py \\\n --lr 2 \"\nbash -c \"$L $C\"\nsh -c 'a $0 $1' b c",
    "a subshell": "X=1\n(X=2; a $X)\na $X\n{ X=3; a $X; }\na $X",
    "a pipeline": "echo 1 | a 2 2>&1 | cat >/dev/null\na 4 > /dev/null",
    "a variable for one command": "N=1\nN=2 bash -c 'a $N'\na $N",
    "here documents": (
        "bash <<EOF\na 1\nEOF\nbash <<'EOF'\nX=2\na $X\nEOF\nread -r -d '' T "
        '<<EOF\n x\n y\nEOF\na "$T"'
    ),
    "a here string": "IFS=, read -ra P <<< 'x,y'\na \"${P[@]}\"\nread -r Q <<< 'one two'\na $Q",
    "an echo": 'A=$(echo b c)\na $A `echo d` "$(basename /x/y.sh .sh)" $(dirname /x/y)',
    "a document in a value": "A=$(cat <<EOF\n  x 1\nEOF\n)\na $A",
    "a folder": 'cd /usr\na "$(cd bin/.. && pwd)" $PWD',
    "export and declare": (
        'export A=1 B="2 3"\ndeclare -a C=(4 5)\nreadonly D=$A\na $A "$B" '
        "${C[@]} $D\nunset A\na ${A:-6}"
    ),
    "continued lines": "a 1 \\\n  2 \\\n  3 # 4\na 5 ; a 6 && a 7",
    "comments in arrays": 'A=(\n  --x 1  # it\'s\n  # --y ) 2\n  --z\n)\na "${A[@]}"',
    "a nested choice": "A=1\nif [ $A = 1 ]; then if [ $A = 2 ]; then a 1; else a 2; fi; fi",
    "true and false": "if false; then a 3; elif true; then a 4; fi",
    "an exit in a branch": 'A=1\nif [ -z "$A" ]; then a 0; exit 1; fi\na 1\n(exit 3)\na 2',
    "the last status": (
        "f() { [ $1 = 1 ]; }\nif f 1; then a one; fi\nf 2 || a two\nf 1 && f 1 && a three"
    ),
}


def run_in_bash(script: str, folder: Path) -> list[list[str]]:
    """Return the words that each call of ``a`` gets in bash, in order."""
    assert BASH is not None
    notes = folder / "notes"
    stub = folder / "a"
    stub.write_text(
        f"#!{BASH}\n{{ for w in \"$@\"; do printf '%s\\0' \"$w\"; done; printf '\\1\\0'; }} >> "
        f"{notes}\n"
    )
    stub.chmod(0o755)
    notes.write_text("")
    subprocess.run(
        [BASH, "-c", script],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        timeout=20,
        check=False,
    )
    calls = notes.read_text().split("\1\0")[:-1]
    return [call.split("\0")[:-1] for call in calls]


def read_by_us(script: str) -> list[list[str]]:
    """Return the words of each ``a`` that we find; none of them may be unknown."""
    commands = [command for command in parse_script(script) if command.words[0].text == "a"]
    assert [word.text for command in commands for word in command.words if word.unknown] == []
    return [[word.text for word in command.words[1:]] for command in commands]


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_construct_is_read_as_bash_runs_it(name: str, tmp_path: Path) -> None:
    """Conditions, loops, functions, arguments, strings, arrays, and scripts inside scripts."""
    assert read_by_us(SCRIPTS[name]) == run_in_bash(SCRIPTS[name], tmp_path)


def statement(draw: random.Random, depth: int) -> str:
    """Return a random statement over the variables X, Y and Z."""
    name = draw.choice("XYZ")
    value = draw.choice(["1", "2", "'b c'", '"$X d"', "$Y", "$((2 * 3))", "${Z:-4}", '"$Z"$X'])
    test = (
        f'[ "{draw.choice(["$X", "$Y", "1"])}" {draw.choice(["=", "!="])} '
        f"{draw.choice(['1', '2', 'b'])} ]"
    )

    def block() -> str:
        return "; ".join(statement(draw, depth - 1) for _ in range(draw.randint(1, 3)))

    simple = [
        f"{name}={value}",
        f"{name}+={value}",
        f"a {value} ${name}",
        f'a "${name}" {value}',
        f"{test} && a 7",
        f"{test} || {name}=8",
        f'A=(1 ${name} "${name}"); a "${{A[@]}}"',
        f"eval 'a ${name}'",
    ]
    if depth == 0 or draw.random() < 0.5:
        return draw.choice(simple)
    return draw.choice(
        [
            f"if {test}; then {block()}; else {block()}; fi",
            f"for {name} in 1 {value}; do {block()}; done",
            f"case ${name} in 1) {block()};; *) {block()};; esac",
            f"f() {{ {block()}; }}; f",
            f"( {block()} )",
        ]
    )


@pytest.mark.slow
def test_random_scripts_are_read_as_bash_runs_them(tmp_path: Path) -> None:
    """Statements in statements, all joined in one file a run of bash; every value is known."""
    draw = random.Random(5)
    for _ in range(40):
        script = "X=1; Y=2; Z=3\n" + "\n".join(statement(draw, 3) for _ in range(6))
        assert read_by_us(script) == run_in_bash(script, tmp_path), script
