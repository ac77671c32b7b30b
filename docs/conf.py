"""Sphinx's settings for `make docs`. Nothing is loaded from other hosts: theme, fonts and search are in the site."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "build" / "example" / "site"  # written by docs/example_session.py

project = "kernel_monitor"
author = "kernel_monitor contributors"
release = version = json.loads((ROOT / "package.json").read_text("utf-8"))["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["screens"]
nitpicky = True
# GitHub's names for headings, so that links to them work there and in the site.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "kernel_monitor"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = [str(EXAMPLE)] if EXAMPLE.is_dir() else []
