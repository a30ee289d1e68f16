"""The page of the command line is what the program says of itself."""

from __future__ import annotations

from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Put the help of every command where the page asks for it."""
    if MARK not in markdown:
        return markdown
    from nested_rl.cli import app

    return markdown.replace(MARK, app.generate_docs(output_format="markdown", heading_level=2))
