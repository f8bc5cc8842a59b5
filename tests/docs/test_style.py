"""The rules of CONTRIBUTING.md that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 400
LONGER_ON_PURPOSE: dict[str, str] = {}  # path: why it is one module

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
BOASTING = re.compile(
    r"\b(blazing\w*|seamless\w*|effortless\w*|cutting-edge|state-of-the-art|world-class|enterprise-grade)\b",
    re.I,
)
SOMEBODYS_MACHINE = re.compile(r"(?<![\w.}])/(work|home/(?!bob\b)\w+)/")
MEANINGLESS_MODULES = {"utils", "util", "helpers", "helper", "common", "misc"}


def modules(*tops: str) -> Iterator[Path]:
    for top in tops:
        yield from sorted(
            path for path in (ROOT / top).rglob("*.py") if not {"build", "_build", ".venv"} & set(path.parts)
        )


def texts() -> Iterator[Path]:
    yield from modules("nodeagent", "client", "migrations", "tests", ".ci")
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted(ROOT.glob("*.md"))
    yield from (ROOT / name for name in ("Makefile", "setup.cfg", "pyproject.toml", "client/demo.sh"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def cases_of(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def test_every_test_says_in_one_line_what_holds() -> None:
    """Every test function has a docstring of one line."""
    wrong = [
        f"{name(path)}:{test.lineno} {test.name}"
        for path in modules("tests")
        if path.name.startswith("test_")
        for test in cases_of(path)
        if not (docstring := ast.get_docstring(test)) or "\n" in docstring
    ]
    assert not wrong, "no docstring, or more than one line:\n" + "\n".join(wrong)


def test_modules_are_small() -> None:
    """No module is longer than 400 lines, but for those listed with the reason."""
    long = {
        name(path): count
        for path in modules("nodeagent", "client", "migrations", "tests", ".ci")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert not {path: count for path, count in long.items() if path not in LONGER_ON_PURPOSE}
    assert set(LONGER_ON_PURPOSE) <= set(long), "listed, and short by now"


def test_modules_have_meaningful_names() -> None:
    """No module is called utils, or another word that says nothing."""
    assert not [
        name(path) for path in modules("nodeagent", "client", "tests") if path.stem in MEANINGLESS_MODULES
    ]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (UNFINISHED, "finish it, or open an issue"),
        (BOASTING, "say what it does instead"),
        (SOMEBODYS_MACHINE, "a path of one machine"),
    ],
    ids=["unfinished", "boasting", "somebodys-machine"],
)
def test_no_text_has_words_that_do_not_belong(pattern: re.Pattern[str], why: str) -> None:
    """Code and documentation have no unfinished marks, no boasting and no path of somebody's machine."""
    found = [
        f"{name(path)}:{number}: {line.strip()[:100]}"
        for path in texts()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, f"{why}:\n" + "\n".join(found)


def test_the_locks_name_versions_and_nothing_else() -> None:
    """requirements/ has name==version lines, a package's with the files' hashes: no hosts or paths."""
    allowed = re.compile(
        r"#.*|-r run\.txt|[a-z0-9-]+==[0-9A-Za-z.+!]+( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?"
    )
    wrong = [
        f"{name(path)}: {line}"
        for path in sorted((ROOT / "requirements").glob("*.txt"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if not allowed.fullmatch(line)
    ]
    assert not wrong


def test_a_package_carries_what_is_locked() -> None:
    """requirements/hashes.txt names the versions of run.txt, each with a hash: .ci/hashes.py was run."""
    locked, hashed = ((ROOT / "requirements" / each).read_text() for each in ("run.txt", "hashes.txt"))
    pinned = r"(?m)^[a-z0-9-]+==[^ \n]+"
    assert sorted(re.findall(pinned, hashed)) == sorted(re.findall(pinned, locked))
    assert len(re.findall(r"\\\n    --hash", hashed)) >= len(re.findall(pinned, locked))
