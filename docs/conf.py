"""Sphinx settings."""

from __future__ import annotations

import nodeagent

project = "nodeagent"
author = "the nodeagent authors"
project_copyright = "the nodeagent authors, Apache-2.0"
version = release = nodeagent.__version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"nodeagent {release}"
man_pages = [("cli", "nodeagent", "share the AMD GPUs of one node", author, 1)]
