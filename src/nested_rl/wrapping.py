"""Sentences on a terminal: broken between words, where it is narrow."""

from __future__ import annotations

import shutil
import sys
import textwrap


def fitted(text: str) -> str:
    """`text` in lines as wide as the terminal that it is printed to; as it is where that is a file, a pipe, or a notebook."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""] for line in text.split("\n")
    )
    return "\n".join(line for several in lines for line in several)
