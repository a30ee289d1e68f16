"""One job on this machine: its folders, its program under watch, what is left of it.

STATE/                the controller's folder for this run; the job cannot write here when it has a user of its own
    job.json          what was sent          console.log   what `rl` printed
    result.json       how it ended           model/        the weights, if they are sound
    work/             the job's own: job.toml, env/, scratch/, and what the run writes (elsewhere if its user cannot go here)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import artefact, gpus, program, tree
from .files import Folder, Lines
from .program import Walls
from .tensors import Refused
from .watchdog import Limits, Watchdog
from .wire import Wire

LOG_BYTES = 24_000
_LOGS = ("trainer.log", "orchestrator.log", "inference.log")
_DISK_EVERY_S = 10.0

Stop = tuple[str, str]


class Ours(Exception):
    """Something failed that is not the job's doing. `stop` is what the controller is told."""

    stop = "ours"


class NotApart(Ours):
    """The job would run as this runner's own user, which it may not."""

    stop = "not_apart"


@dataclass
class Run:
    """A job and where it is. `run` is the folder that prime-rl writes in, below the work folder."""

    wire: Wire
    request: Mapping[str, Any]
    limits: Limits
    walls: Walls
    folder: Folder
    started_s: float

    @property
    def state(self) -> str:
        return str(self.request["state"])

    @property
    def run(self) -> str:
        """As asked; without a name, the newest that is there."""
        asked = str(self.request["run_dir"])
        parent, _, name = asked.rpartition("/")
        return asked if name != "*" else f"{parent}/{(self.folder.names(parent) or ['none'])[-1]}"

    @property
    def gpus(self) -> str:
        """Device ids, as CUDA_VISIBLE_DEVICES takes them; one card may be named twice."""
        return str(self.request["gpus"])

    def find(self, name: str) -> str:
        """Where a program of this machine is."""
        found = program.find(name)
        if found is None:
            raise Ours(f"{name} is not installed on this machine")
        return found

    def execute(
        self, argv: Sequence[str], *, gpus: str, watch: Callable[[float], Stop | None]
    ) -> tuple[int | None, Stop | None]:
        """Run a program to its end, or until `watch` gives a reason. (exit status, reason); nothing of it is left running."""
        env = program.environment(self.folder.path, gpus=gpus, program=argv[0])
        console = f"{self.state}/console.log"
        try:
            child = program.start(argv, work=self.folder.path, env=env, console=console, walls=self.walls)
        except OSError as error:
            raise Ours(f"{argv[0]} cannot be started: {error}") from None
        ended, stop = _handle(child.pid), None
        try:
            while child.poll() is None and stop is None:
                self.wire.wait(self.limits.poll_s, *ended)
                if self.wire.stopped:
                    stop = "called_off", "the controller wants no more"
                elif child.poll() is None:
                    stop = watch(time.monotonic())
        finally:
            for handle in ended:
                os.close(handle)
            group = child.pid if child.returncode is None else None
            left = tree.end_all(group=group, leader=child.pid, uid=self.walls.uid, patience_s=self.limits.patience_s)
        if left:
            raise Ours(f"processes that do not die: {left[:10]}")
        return child.poll(), stop


@contextlib.contextmanager
def prepared(request: Mapping[str, Any], wire: Wire) -> Iterator[Run]:
    """The job unpacked, as sent; its work folder is gone afterwards."""
    state = str(request["state"])
    data = _sent(f"{state}/job.json", str(request["sha256"]))
    walls = _walls(request)
    _sweep()
    work = f"{state}/work"
    if walls.uid is not None:
        for folder in (Path(state), Path(state).parent):
            folder.chmod(0o711)  # the way through, no more
    _readable(str(request["base_path"]), walls.uid)
    if program.reachable(state, walls.uid):
        Path(work).mkdir(mode=0o700)
    else:
        work = tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-")
    try:
        _unpack(data, work)
        program.give(work, walls)
        limits = Limits(**request["limits"])
        yield Run(wire, request, limits, walls, Folder(work), time.monotonic())
    finally:
        for path in (Path(work), *program.strays(walls)):
            shutil.rmtree(path, ignore_errors=True)
            with contextlib.suppress(OSError):
                path.unlink()


def _walls(request: Mapping[str, Any]) -> Walls:
    """Those of this job. `apart`: it runs as somebody else than this runner, or not at all."""
    found = program.find(str(request["argv"][0]))
    needs = [str(request["base_path"]), *((found, str(Path(found).with_name("python"))) if found else ())]
    walls = program.walls(
        str(request["user"]), isolate=bool(request["isolate"]), needs=list(filter(os.path.exists, needs))
    )
    if request["apart"] and walls.uid is None:
        why = "; ".join(walls.notes) or "it would run as the user that started it"
        raise NotApart(f"a verifiers taskset needs a user of its own: {why}")
    return walls


class Watch:
    """What is looked at while the program runs: rows, log, disk, GPUs."""

    def __init__(self, run: Run) -> None:
        self.dog = Watchdog(run.limits, time.monotonic(), run.started_s + run.limits.deadline_s)
        self._run, self._wire = run, run.wire
        self._rows, self._log = Lines(run.folder), Lines(run.folder)
        self._disk_s = 0.0
        self.peak_mib = 0

    def __call__(self, now_s: float) -> Stop | None:
        self.read(now_s)
        self._wire.beat({"step": max(self.dog.rewards, default=0), "reward": (self.dog.curve or [0.0])[-1]})
        if now_s - self._disk_s >= _DISK_EVERY_S:
            self._disk_s = time.monotonic()
            if (full := self.disk()) is not None:
                return full
            with contextlib.suppress(gpus.DriverLost):  # asked again when the run has ended
                mine = gpus.named(gpus.query(), self._run.gpus)
                self.peak_mib = max([self.peak_mib, *(gpu.used_mib for gpu in mine)])
        return self.dog.verdict(now_s)

    def read(self, now_s: float) -> None:
        """Everything that is new in the files."""
        run = self._run.run
        while lines := self._rows.new(f"{run}/metrics.jsonl"):
            for line in lines:
                self.dog.row(line, now_s)
        while lines := self._log.new(f"{log_folder(self._run)}/orchestrator.log"):
            for line in lines:
                self.dog.line(line)

    def disk(self) -> Stop | None:
        """Whether the disk is (nearly) full, and by whom: what the job wrote is counted wherever it can write."""
        run, limits = self._run, self._run.limits
        used = run.folder.used() + sum(map(_used, (Path(run.state, "console.log"), *program.strays(run.walls))))
        spare = shutil.disk_usage(run.state).free
        if used > limits.job_bytes:
            return "disk_job", f"the job filled {used >> 20} MiB of disk, its limit is {limits.job_bytes >> 20} MiB"
        if spare < limits.spare_bytes:
            return "disk_other", f"only {spare >> 20} MiB of disk are free, and the job uses only {used >> 20} MiB"
        return None


def log_folder(run: Run) -> str:
    """The newest attempt's logs; `latest` is a link, and links are not followed."""
    attempts = [name for name in run.folder.names(f"{run.run}/logs") if name.startswith("attempt_")]
    return f"{run.run}/logs/{max(attempts, key=lambda name: (len(name), name), default='attempt_1')}"


def logs(run: Run) -> dict[str, str]:
    """The ends of all logs, by name."""
    place = log_folder(run)
    found = {name: run.folder.tail(f"{place}/{name}", LOG_BYTES) for name in _LOGS}
    for split in ("train", "eval"):
        for name in run.folder.names(f"{place}/envs/{split}")[:4]:
            found[f"envs/{split}/{name}"] = run.folder.tail(f"{place}/envs/{split}/{name}", LOG_BYTES)
    found["console"] = Folder(run.state).tail("console.log", LOG_BYTES)
    return {name: text for name, text in found.items() if text}


def take(run: Run, *, steps: int | None) -> tuple[int, str]:
    """Copy the weights of step `steps` (None: of the last that is complete) to STATE/model; their step and digest."""
    complete = artefact.finished(run.folder, run.run)
    step = max(complete, default=0) if steps is None else steps
    if step not in complete or step < 1:
        last = f"the last complete one is of step {max(complete)}" if complete else "there is none"
        raise Refused(f"no complete weights of step {steps or 1}: {last}")
    source = artefact.Source(run.folder, complete[step], str(run.request["kind"]), str(run.request["base_path"]))
    return step, artefact.take(source, f"{run.state}/model", beat=run.wire.beat)


def _sent(path: str, sha256: str) -> bytes:
    data = Path(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Ours("the job did not arrive as it was sent")
    return data


def _readable(base_path: str, uid: int | None) -> None:
    """A base that its user cannot read would look like a job that fails."""
    if not Path(base_path, "config.json").is_file():
        raise Ours(f"{base_path}: there is no base")
    if not program.reachable(base_path, uid):
        raise Ours(f"{base_path}: user {uid}, who runs the job, cannot go there")


def _unpack(data: bytes, work: str) -> None:
    files: dict[str, str] = json.loads(data)
    Path(work, "scratch").mkdir()
    for path, text in files.items():
        if path.startswith("/") or ".." in path.split("/"):
            raise Ours(f"{path!r} is not a path in the job")
        place = Path(work, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")


def _prefix() -> str:
    return f"nested-rl-work-{os.getuid()}-"


def _sweep() -> None:
    """Remove the work folders of runners that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        owner = folder.name.removeprefix(_prefix()).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _used(path: Path) -> int:
    with contextlib.suppress(OSError):
        below = 0 if path.is_symlink() or not path.is_dir() else Folder(str(path)).used()
        return path.lstat().st_blocks * 512 + below
    return 0


def _handle(pid: int) -> list[int]:
    """A descriptor that becomes readable when the process ends, where there is such a thing."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []
