"""Which checkpoints of the outer trainer stay, and whether there is room for the next one.

A version that is let go of is told in the journal first (`checkpoint.gone`), so that nobody looks for it; then the trainer deletes
it, if it can (`forget`). What cannot be deleted now is tried again after the next step: a full trash can is no reason to stop.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from nested_rl import redact
from nested_rl.errors import RunDirError
from nested_rl.interfaces import OuterTrainer
from nested_rl.rundir import RunDir

log = redact.logger(__name__)

KEEP_CHECKPOINTS = 100
"""By default so many of the newest stay."""
MARGIN_BYTES = 16 << 20
"""Of disk that must be free besides a checkpoint: for episodes, journal and queue of a step."""


def refs(run: RunDir) -> dict[int, str]:
    """Version → reference of every checkpoint that a run still has."""
    found: dict[int, str] = {}
    for event in run.events("checkpoint", "step.done", "checkpoint.gone"):
        if event["event"] == "checkpoint.gone":
            found.pop(int(event["version"]), None)
        else:
            found[int(event["version"])] = str(event["ref"])
    return found


def spare(versions: Collection[int], *, keep: int, needed: Collection[int]) -> list[int]:
    """The versions that can go: not the first, not one of the `keep` newest, not a needed one.

    >>> spare(range(8), keep=3, needed=[2])
    [1, 3, 4]
    """
    newest = sorted(versions)[-keep:]
    return [version for version in sorted(versions) if version not in {0, *newest, *needed}]


class Checkpoints:
    """The checkpoints of one run. `keep=None` keeps every version.

    `tell` journals an event, durably.
    """

    def __init__(self, run: RunDir, trainer: OuterTrainer, *, keep: int | None, tell: Callable[..., None]) -> None:
        self._run, self._trainer, self._keep, self._tell = run, trainer, keep, tell
        self.undeleted: dict[int, str] = {}

    async def thin(self, refs: dict[int, str], needed: Callable[[], Collection[int]]) -> None:
        """Let go of what is not needed any more; takes it out of `refs`. `needed` is asked only when there is too much."""
        forget = getattr(self._trainer, "forget", None)
        if self._keep is None or forget is None:
            return
        if len(refs) > self._keep + 1:
            for version in spare(refs, keep=self._keep, needed=needed()):
                self._tell("checkpoint.gone", version=version, sync=True)
                self.undeleted[version] = refs.pop(version)
        for version, ref in list(self.undeleted.items()):
            try:
                await forget(ref)
            except Exception as error:  # noqa: BLE001  tidying up ends no run, whoever's trainer it is
                log.warning("checkpoint %d cannot be deleted now, and is tried again later: %s", version, error)
                return
            del self.undeleted[version]

    def require_room(self) -> None:
        """Raises RunDirError when the disk has no room for what the next step writes: before it is paid for, not after."""
        folder = self._run.path / "checkpoints"
        newest = max(folder.glob("[0-9]*"), default=None, key=lambda path: path.name) if folder.is_dir() else None
        need = MARGIN_BYTES + (0 if newest is None else size(newest))
        free = shutil.disk_usage(self._run.path).free
        if free < need:
            raise RunDirError(
                f"{self._run.path}: {free / 2**20:.0f} MiB are free, and the next step needs about {need / 2**20:.0f}; make room and "
                "run again to go on (nothing that was paid for is lost), or keep fewer checkpoints (keep_checkpoints)"
            )


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def known(refs: Mapping[int, str]) -> str:
    """The versions there are, in words.

    >>> known({0: "a", 1: "b", 2: "c", 7: "d"}), known({})
    ('0 to 2, 7', 'none yet')
    """
    spans: list[list[int]] = []
    for version in sorted(refs):
        if spans and version == spans[-1][-1] + 1:
            spans[-1][1:] = [version]
        else:
            spans.append([version])
    return ", ".join(" to ".join(map(str, span)) for span in spans) or "none yet"
