"""`export`: successful transcripts of a run as chat data."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def export(
    run: Path,
    /,
    *,
    out: Path,
    kind: Annotated[Literal["sft", "datasets"], Parameter(name="--format")] = "sft",
    min_reward: float = 0.0,
) -> None:
    """Write the successful transcripts of a run as chats, to train other agents on.

    Messages and tool calls are in the OpenAI format, one conversation a line. Successful is an episode with a valid job.

    Args:
        run: Run directory.
        out: The file (sft) or folder (datasets) to make.
        kind: sft is one JSONL file; datasets a folder with the same and a dataset card.
        min_reward: Only episodes with at least this reward.
    """
    from nested_rl.export import write
    from nested_rl.rundir import RunDir

    print(write(RunDir.open(run), out, kind=kind, min_reward=min_reward))
