"""The error tree. Every error says what was wrong, where, and what to do.

NestedRLError
├── SettingsError (ValueError)       wrong use; the command line prints it without a traceback and exits with 2
│   ├── UnknownName (LookupError)    a family, part or key that does not exist; names the nearest right one
│   │   └── UnknownArgument (TypeError)   the same, of an argument in a script
│   └── RunMismatch                  the run directory holds another experiment; shows the fields that differ
├── MissingExtra (ImportError)       an optional stack is not installed; names the extra to install
├── RunDirError (OSError)            the run directory cannot be read or written (full disk, permissions, damage)
├── BudgetExceeded                   the meter stopped the run; raise the budget and run again to resume
├── RewardError (TypeError)          a reward function returned something that is not finite numbers
├── TrainerError                     the outer trainer cannot go on (bad checkpoint, stale sampler)
├── SupervisionError                 a background task died, or too much failed in a row; the run can be resumed
└── JobError                         one job went wrong; recorded on its result, never raised out of the loop
    ├── AgentFault                   the job's own doing (crash, time-out of its making): it scores
    └── InfraFault                   ours or the provider's doing: the job is delivered again, then masked
        ├── MachineLost              the machine died or stopped answering
        └── LeaseLost                another owner has the job now; this result is ignored

`exit_code` is what the command line ends with; docs/guides/when-things-break.md has the table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class NestedRLError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code: ClassVar[int] = 1


class SettingsError(NestedRLError, ValueError):
    """Wrong use: a value that cannot work. Shown without a traceback."""

    exit_code = 2


class UnknownName(SettingsError, LookupError):
    """A name that does not exist, with the nearest one that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")


class UnknownArgument(UnknownName, TypeError):
    """An argument that a function does not take, with the nearest one that it does."""


class RunMismatch(SettingsError):
    """The run directory was made by another experiment."""


class MissingExtra(NestedRLError, ImportError):
    """An optional stack is not installed."""

    def __init__(self, part: str, extra: str) -> None:
        super().__init__(f"{part} needs an optional stack: pip install 'nested-rl[{extra}]'")


class RunDirError(NestedRLError, OSError):
    """The run directory cannot be read or written."""

    exit_code = 5


class BudgetExceeded(NestedRLError):
    """The budget is used up; what was paid for is kept and the run can be resumed with a larger one."""

    exit_code = 4


class RewardError(NestedRLError, TypeError):
    """A reward function returned something other than a finite number or a mapping of finite numbers."""


class TrainerError(NestedRLError):
    """The outer trainer cannot go on."""

    exit_code = 3


class SupervisionError(NestedRLError):
    """A background task died, and its exception is the cause; or too much failed in a row to go on."""

    exit_code = 3


class JobError(NestedRLError):
    """One job went wrong. Recorded on its result, never raised out of the loop."""


class AgentFault(JobError):
    """The job's own doing; it scores as it is."""


class InfraFault(JobError):
    """Not the job's doing; it is delivered again, and masked when deliveries run out."""


class MachineLost(InfraFault):
    """The machine died or stopped answering."""


class LeaseLost(InfraFault):
    """Another owner holds the job now."""
