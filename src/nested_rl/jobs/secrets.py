"""Job folders and the secrets of this computer: no job may hold one."""

from __future__ import annotations

from collections.abc import Mapping

from nested_rl import redact
from nested_rl.types import Problem, Validation


def secret(files: Mapping[str, str]) -> Validation | None:
    """A job that holds a secret of this computer is refused: what was accepted is hashed, runs and is kept as it is."""
    if not redact.holds("\0".join([*files, *files.values()])):
        return None
    found = next((name for name, text in files.items() if redact.holds(text) or redact.holds(name)), "")
    problem = Problem(
        code="files.secret",
        where=redact.known(found),
        message="this file holds a key or password of the computer that runs the experiment",
        hint="take it out",
        brief="a file holds a secret",
    )
    return Validation(ok=False, problems=(problem,))
