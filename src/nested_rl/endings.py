"""What a run that ended before its time still has, and how to go on."""

from __future__ import annotations

from collections import Counter

from nested_rl.errors import RewardError
from nested_rl.report.phrases import count
from nested_rl.rundir import RunDir


def kept(run: RunDir, error: BaseException) -> str:
    """The note on the error that ended it."""
    names = Counter(str(event["event"]) for event in run.events("step.done", "episode.done", "job.done"))
    steps = count(names["step.done"], "step")
    whose = "its checkpoint" if names["step.done"] == 1 else "their checkpoints"
    told = f"Kept in {run.path}: {steps} with {whose}, {count(names['episode.done'], 'episode')}, {count(names['job.done'], 'finished job')}."
    if not isinstance(error, RewardError):
        return f"{told} Mend the cause, and run the same again to go on."
    if not names["step.done"]:
        return (
            f"{told} Mend the function, and run the same again to go on: nothing was trained yet, so what is recorded gets its "
            "reward from the mended one."
        )
    return (
        f"{told} If the cause is outside the function (a service that was away), run the same again to go on. With a mended function "
        f"it is another experiment, as the old one was trained on: choose another `out`, or start over here with `--fresh` on the "
        f"command line. What the mended one pays for what is recorded: nested-rl replay {run.path} --reward FILE.py:NAME"
    )
