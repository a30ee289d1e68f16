"""`export`: successful transcripts of a run as chat data, or all of them as a log to look at."""
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
    kind: Annotated[Literal["sft", "datasets", "inspect"], Parameter(name="--format")] = "sft",
    min_reward: float = 0.0,
) -> None:
    """Write the successful transcripts of a run as chats, to train other agents on; or all of them as a log to look at.

    Messages and tool calls of chats are in the OpenAI format, one conversation a line. Successful is an episode with a valid job.

    Args:
        run: Run directory.
        out: The file (sft) or folder (datasets) to make.
        kind: sft is one JSONL file; datasets a folder with the same and a dataset card; inspect a log (.json) of every episode
            for `inspect view` (pip install inspect-ai).
        min_reward: Only episodes with at least this reward (not for inspect).
    """
    from nested_rl import viewer_log
    from nested_rl.export import write
    from nested_rl.report.phrases import count
    from nested_rl.rundir import RunDir

    if kind == "inspect":
        damaged: dict[str, str] = {}
        n = count(viewer_log.write(RunDir.open(run), out, damaged=damaged), "episode")
        print(f"{out}: {n}; to look at them: inspect view --log-dir {out.parent}")
        if damaged:
            print(f"Left out: {count(len(damaged), 'episode')}; the first: {next(iter(damaged.values()))}")
        return
    print(write(RunDir.open(run), out, kind=kind, min_reward=min_reward))
