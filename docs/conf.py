"""Sphinx settings."""

from __future__ import annotations

import json
from pathlib import Path

from sphinx.application import Sphinx

import nodeagent
from nodeagent.adapters.clock import SystemClock
from nodeagent.api.app import ApiSettings, api_routes
from nodeagent.api.openapi import document

project = "nodeagent"
author = "the nodeagent authors"
project_copyright = "the nodeagent authors, Apache-2.0"
version = release = nodeagent.__version__

extensions = ["myst_parser"]
# docs/man has the halves of cli.md, as the manual's pages: `make man`
exclude_patterns = ["_build"] if tags.has("man") else ["_build", "man"]  # noqa: F821
myst_heading_anchors = 3
if tags.has("man"):  # noqa: F821  # halves of a page, whose links lead to pages that are no manual's
    suppress_warnings = ["myst.header", "myst.xref_missing", "ref.doc", "toc.not_included"]
html_theme = "furo"
html_title = f"nodeagent {release}"
man_pages = [
    ("man/gpulease", "gpulease", "take, use and give back slices of AMD GPUs", author, 1),
    ("man/nodeagent", "nodeagent", "share the AMD GPUs of one node", author, 8),
]


def write_openapi(app: Sphinx) -> None:
    """Put the description that the agent serves beside the pages, for readers without an agent."""
    routes = api_routes(agent=None, settings=ApiSettings(clock=SystemClock(), version=release))
    path = Path(app.outdir) / "openapi.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(routes, release), indent=1), encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_openapi)
