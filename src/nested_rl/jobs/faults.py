"""How running agent-written code can go wrong: by its own doing, or by ours."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nested_rl.errors import AgentFault, InfraFault, JobError

During: TypeAlias = Literal["environment", "examples", "reward"]
"""The part of environment.py that was running: its top level, or one of the two functions."""


class SandboxError(JobError):
    """An environment did not do what it was asked. `during` says in which part of environment.py."""

    def __init__(self, message: str, *, during: During = "environment", row: int | None = None) -> None:
        super().__init__(message)
        self.during: During = during
        self.row = row


class EnvironmentFault(SandboxError, AgentFault):
    """The agent's code is to blame."""


class EnvironmentCrashed(EnvironmentFault):
    """The code raised (`raised` is the type's name, `line` the line in environment.py) or ended its process ("")."""

    def __init__(
        self, message: str, *, during: During, raised: str = "", line: int | None = None, row: int | None = None
    ) -> None:
        super().__init__(message, during=during, row=row)
        self.raised = raised
        self.line = line


class EnvironmentTimeout(EnvironmentFault):
    """The code took too long and was killed."""


class EnvironmentMisbehaved(EnvironmentFault):
    """The code gave back something of the wrong kind: `kind` is "row", "number", "size" or "reply"."""

    def __init__(self, message: str, *, during: During, kind: str = "reply", row: int | None = None) -> None:
        super().__init__(message, during=during, row=row)
        self.kind = kind


class SandboxUnavailable(SandboxError, InfraFault):
    """The sandbox itself failed; the code is not to blame."""
