"""A job's environment.py as a verifiers taskset: rows become tasks, its reward grades the last reply.

Written to what verifiers 0.3.1 and 0.4.0 have in common.
"""

from __future__ import annotations

import logging

import verifiers.v1 as vf

from .asking import Asking, rows

log = logging.getLogger(__name__)
_asking = Asking()


class Row(vf.TaskData):
    """One row of `examples`."""

    answer: str


class PlainTask(vf.Task[Row]):
    """One question, one reply."""

    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        """The reply ends it."""
        return bool(trace.num_turns >= 1)

    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        """The job's reward, always finite. Metric `reward_faults` is 1 where it could not be used as it was."""
        value, fault = await _asking.reward(self.data.prompt_text, trace.last_reply or "", self.data.answer)
        trace.record_metric("reward_faults", 1.0 if fault else 0.0)
        if fault:
            log.warning("reward: %s", fault)
        return value


class PlainConfig(vf.TasksetConfig):
    """At most `rows` tasks, drawn with `seed`."""

    rows: int = 1024
    seed: int = 0


class PlainTaskset(vf.Taskset[PlainTask, PlainConfig]):
    """The rows of `examples` without those that belong to an evaluation."""

    def load(self) -> list[PlainTask]:
        """Every task. Raises RuntimeError when there is none."""
        found, dropped = rows(self.config.rows, self.config.seed)
        log.info("%d rows; %d more belong to the evaluations and were dropped", len(found), dropped)
        if not found:
            raise RuntimeError(f"no row is left: {dropped} belong to the evaluations")
        return [
            PlainTask(Row(idx=i, prompt=row["prompt"], answer=row["answer"]), self.config.task)
            for i, row in enumerate(found)
        ]
