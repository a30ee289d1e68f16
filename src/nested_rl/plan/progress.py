"""How far a plan is, for whoever waits for it at a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def counted(total: int, *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A line on standard error that counts the simulations, and is gone at the end; only at a terminal. Call after each."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console

    done = 0

    def words() -> str:
        return f"Simulating the run, {done} of {total} times …"

    with Console(stderr=True, highlight=False).status(words()) as status:

        def one_more() -> None:
            nonlocal done
            done += 1
            status.update(words())

        yield one_more
