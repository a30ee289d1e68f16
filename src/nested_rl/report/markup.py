"""From templates to pages: whatever is put into one is escaped and holds no secret; invisible characters are spelled out on request."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nested_rl import redact
from nested_rl.report.phrases import count, duration, money, number, percent, seconds

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def templates() -> Environment:
    """The pages' templates, with the filters they use."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from nested_rl.report.showcase import inert

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spoken = (number, percent, duration, seconds, money, count, inert)
    environment.filters.update({phrase.__name__: phrase for phrase in spoken})
    return environment


def _clean(value: Any) -> Any:
    """Text holds no secret; pictures and highlighted code are made of clean text already."""
    return redact.text(value) if type(value) is str else value
