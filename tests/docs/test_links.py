"""Links within the documentation lead somewhere: to a page, a file, and the heading that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "man").glob("*.md"), *ROOT.glob("*.md")])
ROLE = re.compile(r"\{(doc|download)\}`(?:[^`<]*<([^`>]+)>|([^`]+))`")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")  # a scheme
DEEPEST = 3  # `myst_heading_anchors` in docs/conf.py: deeper headings have no anchor


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt().enable("table").parse(text):
        yield token
        yield from token.children or ()


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """Those of the page's headings; one that comes again has a number behind it."""
    found: list[str] = []
    for opening, inline in pairwise(tokens(page.read_text(encoding="utf-8"))):
        if opening.type == "heading_open" and int(opening.tag[1:]) <= DEEPEST:
            parts = (one.content for one in inline.children or () if one.type in ("text", "code_inline"))
            found.append(slug("".join(parts)))
    again = {f"{name}-{number}" for name in found for number in range(1, found.count(name))}
    return frozenset(found) | again


def roles(text: str) -> Iterator[tuple[str, str]]:
    """(role, target) of each reference in the prose; code blocks have none."""
    prose = re.sub(r"^(```|~~~).*?^\1$", "", text, flags=re.M | re.S)
    for kind, named, bare in ROLE.findall(prose):
        yield kind, named or bare


def broken(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for kind, target in roles(text):
        if not (page.parent / (f"{target}.md" if kind == "doc" else target)).is_file():
            yield f"{{{kind}}}`{target}`: there is no such file"
    for token in tokens(text):
        target = str(token.attrs.get("href" if token.type == "link_open" else "src", ""))
        if not target or ELSEWHERE.match(target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors(file.resolve()):
            yield f"{target}: no heading of {file.name} has that anchor"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Each link, image, {doc} and {download} of the page names what there is, down to the heading."""
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A page, an anchor, a role and an image that are not there are named; what is there is not."""
    page = tmp_path / "a.md"
    page.write_text(
        "# One `two`\n\n## Three\n\n[x](#one-two) [x](b.md#no) [x](c.md) ![x](d.png) {doc}`e` {doc}`b <b>`\n"
        "\n| [x](#four) |\n|---|\n\n```text\n[x](none.md) {doc}`none`\n```\n"
    )
    (tmp_path / "b.md").write_text("#### No\n")
    assert [one.split(":")[0] for one in broken(page)] == ["{doc}`e`", "b.md#no", "c.md", "d.png", "#four"]


def test_no_page_is_beside_the_contents() -> None:
    """README.md leads to the pages that a reader begins with."""
    read_on = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Read on")[2]
    for name in ("quickstart", "concepts", "everyday", "coming-from", "install", "nodes", "architecture"):
        assert f"(docs/{name}.md)" in read_on
