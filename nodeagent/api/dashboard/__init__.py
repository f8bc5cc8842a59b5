"""The page for people: three files, which tell nothing of the node; what they show they ask the API for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodeagent.api.routes import Call, Promise, Reply, Route

PAGE = "page"  # the route that links may lead to
_FILES = {
    "/": ("page.html", PAGE, "text/html; charset=utf-8", "A page for people."),
    "/dashboard.css": ("dashboard.css", "pageStyle", "text/css; charset=utf-8", "The page's style."),
    "/dashboard.js": ("dashboard.js", "pageScript", "text/javascript; charset=utf-8", "The page's script."),
}
# Two files of its own and calls to its own origin. Text cannot become markup by any way that a script has.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Mapping[str, str] = {"Content-Security-Policy": _POLICY}


def dashboard_routes() -> tuple[Route, ...]:
    """The page and its two files, read once."""
    return tuple(_route(path, *of_file) for path, of_file in _FILES.items())


def _route(path: str, file: str, name: str, media: str, summary: str) -> Route:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")

    def handle(_call: Call) -> Reply:
        return Reply(text, headers=_HEADERS)

    return Route("GET", path, name, summary, handle, {200: Promise(summary)}, media=(media,), public=True)
