"""The page of the command line is what the program says of itself."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Put the help of every command where the page asks for it."""
    if MARK not in markdown:
        return markdown
    from nested_rl.cli import app

    # Its usage lines begin with the program that runs.
    with mock.patch.object(sys, "argv", ["nested-rl"]):
        told = app.generate_docs(output_format="markdown", heading_level=2)
    return markdown.replace(MARK, told)
