"""What a nano-scale job may import: a family's public question generator and an answer parser.

>>> import random
>>> make("calc_chain", random.Random(0), 1)
[{'prompt': 'c4-1-5-4?', 'answer': '4'}]
>>> parse("72>6.")
'6'

Questions come from the training buckets only; held-out ones are never made.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from nested_rl.answers import nano as parse
from nested_rl.errors import UnknownName

if TYPE_CHECKING:
    from nested_rl.tasks import ChainFamily

__all__ = ["make", "parse", "warm"]


def make(family: str, rng: random.Random, n: int, k: int | tuple[int, int] | None = None) -> list[dict[str, str]]:
    """`n` questions of a family with their answers. `k` is a chain length or an inclusive range of lengths.

    Raises UnknownName (a LookupError) for an unknown family, with the nearest right one.
    """
    return [{"prompt": item.prompt, "answer": item.answer} for item in _family(family).examples(rng, n, k)]


def warm(*families: str | Path) -> None:
    """Load families ahead of time (all built-in ones when none is named), so that later calls touch no files.

    A family of yours is given by the path of its folder, and known by its name from then on.
    """
    from nested_rl import tasks

    for family in tasks.load(*families, scale="nano"):
        assert isinstance(family, tasks.ChainFamily), f"{family.name} is not a ChainFamily"
        _LOADED[family.name] = family


_LOADED: dict[str, ChainFamily] = {}


def _family(name: str) -> ChainFamily:
    if name not in _LOADED:
        from nested_rl import tasks

        if name not in tasks.names():
            raise UnknownName("family", str(name), {*tasks.names(), *_LOADED})
        warm(name)
    return _LOADED[name]
