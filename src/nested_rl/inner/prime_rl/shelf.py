"""Where trained weights are kept on the controller: every adapter, and the few full fine-tunes with the best training rewards.

FOLDER/DIGEST/         one checkpoint, as vLLM loads it
FOLDER/rewards.json    the mean reward of the last training steps, by digest
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import fmean
from typing import Final

from nested_rl import redact
from nested_rl.clock import Clock
from nested_rl.errors import InfraFault
from nested_rl.inner.prime_rl import artefacts
from nested_rl.inner.prime_rl.order import Ended
from nested_rl.interfaces import Machine
from nested_rl.waiting import Overdue, within

log = redact.logger(__name__)
REWARDS: Final = "rewards.json"
_LAST: Final = 3


class Shelf:
    """`best` full fine-tunes are kept; a hidden score is not known yet when weights are fetched."""

    def __init__(self, folder: Path, *, best: int, clock: Clock) -> None:
        self._folder, self._best, self._clock = folder, best, clock
        self._alone = asyncio.Lock()

    async def take(self, machine: Machine, ended: Ended, *, full: bool, within_s: float) -> Path | None:
        """Fetch what a run made. None when it is not among the best, or could not be had in time; its score counts all the same."""
        reward = fmean(ended.curve[-_LAST:]) if ended.curve else 0.0
        async with self._alone:
            rewards = {**self._rewards(), ended.digest: reward}
            best = sorted(rewards, key=lambda digest: -rewards[digest])[: self._best]
            if full and ended.digest not in best:
                return None
            try:
                work = artefacts.fetch(machine, ended.path, self._folder, digest=ended.digest)
                kept = await within(self._clock, within_s, work)
            except (InfraFault, Overdue, OSError) as error:
                log.warning("%s: the weights %s were not kept: %s", machine.id, ended.digest[:16], error)
                return None
            if full:
                self._note({digest: rewards[digest] for digest in best})
                await asyncio.to_thread(artefacts.retain, self._folder, best)
        return kept

    def _rewards(self) -> dict[str, float]:
        path = self._folder / REWARDS
        try:
            return {str(digest): float(value) for digest, value in json.loads(path.read_text("utf-8")).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _note(self, rewards: dict[str, float]) -> None:
        draft = self._folder / f".{REWARDS}"
        draft.write_text(json.dumps(rewards), "utf-8")
        draft.replace(self._folder / REWARDS)
