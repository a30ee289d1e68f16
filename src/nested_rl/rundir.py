"""The run directory: everything a reader may want is a file they can open (docs/run-directory.md names each).

Files appear by atomic rename. The journal is append-only and synced to disk before the side effect it announces; a torn
last line (kill -9, full disk) is dropped when the run is opened again, and so is what a killed process was still writing. One
process owns a run at a time. Secrets are taken out of everything that is written here, except for the files of accepted jobs:
those are what ran, and hold none (see `episode`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

import tomli_w

from nested_rl import redact, scratch, serialize
from nested_rl.differences import differences, of_machines, refusal, reward_alone
from nested_rl.errors import RunDirError, RunMismatch, SettingsError
from nested_rl.types import (
    JSON,
    Episode,
    JobResult,
    Message,
    Outcome,
    Score,
    Submitted,
    Task,
    Transcript,
    Turn,
    Validation,
)

Baselines = Mapping[str, Mapping[str, Mapping[str, Score]]]
"""task key → split ("hidden" or "dev") → base → score."""
REWARD_CHANGED = "reward.changed"
COMPUTE_CHANGED = "compute.changed"


@contextlib.contextmanager
def _plainly(path: Path) -> Iterator[None]:
    """Say which file could not be read or written, and why, in one sentence."""
    try:
        yield
    except RunDirError:
        raise
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror or error}; nothing that was recorded before is lost") from error
    except (SettingsError, KeyError, TypeError, ValueError) as error:
        raise RunDirError(f"{path}: damaged, or written by a newer nested_rl ({error})") from error


def write_atomic(path: Path, data: bytes, *, sync: bool = False, mode: int = 0o644) -> None:
    """Make `path` hold `data`, all or nothing; with `sync` it is on the disk, under its name, before this returns."""
    with _plainly(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = scratch.draft(path.parent)
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if sync:
            sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Log:
    """An append-only file of JSON lines. `sync` makes a line durable before `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def append(self, row: Mapping[str, JSON], *, sync: bool = False) -> None:
        """One line, written in one call."""
        line = _line(row)
        with _plainly(self.path):
            if self._file is None:
                self._mend()
                self._file = self.path.open("ab", buffering=0)
            start = os.fstat(self._file.fileno()).st_size
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fsync(self._file.fileno())
            except OSError:
                try:
                    self._file.truncate(start)
                except OSError:
                    self.close()  # the next line mends the file first
                raise

    def rows(self) -> Iterator[dict[str, JSON]]:
        """Every whole line; a torn last one is not a row."""
        if not self.path.exists():
            return
        with _plainly(self.path), self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise RunDirError(f"{self.path}, line {number}: not JSON ({error})") from error

    def rewrite(self, rows: Iterable[Mapping[str, JSON]], *, sync: bool = False) -> None:
        """Hold these lines instead, all or nothing."""
        self.close()
        write_atomic(self.path, b"".join(_line(row) for row in rows), sync=sync)

    def _mend(self) -> None:
        """Cut off a torn last line, so that the next one starts at a line start."""
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            with self.path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _line(row: Mapping[str, JSON]) -> bytes:
    return (json.dumps(redact.data(row), separators=(",", ":"), allow_nan=False) + "\n").encode()


class RunDir:
    """One run on disk. `open` reads; `create` also owns (one process at a time)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Log(path / "journal.jsonl")
        self.costs_log = Log(path / "costs.jsonl")
        self.metrics_log = Log(path / "metrics.jsonl")
        self._lock: int | None = None

    # -- opening

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDir:
        """An existing run, to read. Raises SettingsError if there is none."""
        run = cls(Path(path))
        if not (run.path / "run.toml").is_file():
            raise SettingsError(f"{run.path} is not a run directory: it has no run.toml")
        return run

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        asked: Mapping[str, JSON],
        *,
        may_change: tuple[str, ...] = (),
        salt: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> RunDir:
        """Start a run, or go on with the one that is there if it is the same experiment.

        `asked` is what run.toml records. Fields in `may_change` may differ from an earlier part of the run (more steps, a
        larger budget), and the reward while no step is done, which the journal tells (`reward.changed`, at the time `now`, as `compute.changed`); any
        other difference raises RunMismatch and names the fields. `salt` makes two runs comparable.
        """
        run = cls(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise SettingsError(f"{run.path} is a file, not a folder; choose another `out`")
        with _plainly(run.path):
            run.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # not for jobs that run here as another user
            foreign = [p.name for p in run.path.iterdir() if p.name not in ("lock", "secret") and p.name[0] != "."]
        if foreign and not (run.path / "run.toml").is_file():
            raise SettingsError(f"{run.path} is not empty and not a run directory; choose another `out`")
        run.own()
        scratch.sweep(run.path)
        asked = redact.data(json.loads(json.dumps(asked)))
        try:
            if (run.path / "run.toml").is_file():
                run._same_experiment(asked, may_change, now)
            run._keep_salt(salt)
            write_atomic(run.path / "run.toml", tomli_w.dumps(_without_none(asked)).encode(), sync=True)
        except BaseException:
            run.close()
            raise
        return run

    def _keep_salt(self, wanted: str | None) -> None:
        """A run has one salt for ever: the first one."""
        path = self.path / "secret" / "salt"
        if path.exists():
            if wanted is not None and wanted != self.salt:
                raise RunMismatch(
                    f"{self.path} has a hidden evaluation of its own already; choose another `out` to take another run's"
                )
            return
        if (self.path / "baselines.json").exists():
            raise RunDirError(
                f"{path} is missing, and with it the hidden evaluation that this run was measured on; put it back, or start a new run"
            )
        with _plainly(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, (wanted or secrets.token_hex(16)).encode(), sync=True, mode=0o600)

    def own(self) -> None:
        """Take the run for this process, until `close`."""
        with _plainly(self.path / "lock"):
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise SettingsError(
                f"another process is running in {self.path}; wait for it or choose another `out`"
            ) from None

    def _same_experiment(
        self, asked: Mapping[str, JSON], may_change: tuple[str, ...], now: Callable[[], float]
    ) -> None:
        found = differences(self.spec, _without_none(asked), may_change=may_change)
        steps = sum(1 for _ in self.events("step.done")) if found else 0
        if found and (steps or not reward_alone(found)):
            raise RunMismatch(refusal(self.path, found, steps=steps))
        if found:
            self.journal.append({"t": now(), "event": REWARD_CHANGED}, sync=True)
        if machines := of_machines(self.spec, _without_none(asked)):
            changed = {name: list(pair) for name, pair in machines.items()}
            self.journal.append({"t": now(), "event": COMPUTE_CHANGED, "changed": changed}, sync=True)

    def close(self) -> None:
        """Flush, and let another process have the run."""
        for log in (self.journal, self.costs_log, self.metrics_log):
            log.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- what was asked, what happened

    @property
    def spec(self) -> dict[str, JSON]:
        """run.toml."""
        with _plainly(self.path / "run.toml"), (self.path / "run.toml").open("rb") as file:
            return tomllib.load(file)

    @property
    def salt(self) -> str:
        """The secret that picks the evaluation items. Never shown, never given to a sandbox."""
        with _plainly(self.path / "secret" / "salt"):
            salt = (self.path / "secret" / "salt").read_text(encoding="utf-8").strip()
        redact.know(salt)
        return salt

    def events(self, *names: str) -> Iterator[dict[str, JSON]]:
        """Journal rows, all or those of some names."""
        return (row for row in self.journal.rows() if not names or row.get("event") in names)

    def metrics(self) -> list[dict[str, float]]:
        """One row a step, in order."""
        return list(self.metrics_log.rows())

    def costs(self) -> list[dict[str, JSON]]:
        """The ledger, each id once."""
        return list({str(row["id"]): row for row in self.costs_log.rows()}.values())

    @property
    def finished(self) -> bool:
        """Whether every step that was asked for is done."""
        return len(self.metrics()) >= int(self.spec.get("steps", 0))

    def rewrite_metrics(self, rows: list[dict[str, float]]) -> None:
        """Make metrics.jsonl agree with the journal, which is the truth."""
        self.metrics_log.rewrite(rows)

    # -- baselines

    def baselines(self) -> dict[str, dict[str, dict[str, Score]]]:
        """task key → split → base → score, measured once per run."""
        path = self.path / "baselines.json"
        if not path.exists():
            return {}
        with _plainly(path):
            return serialize.loads(path.read_bytes(), dict[str, dict[str, dict[str, Score]]])

    def write_baselines(self, baselines: Baselines) -> None:
        """Record them."""
        write_atomic(self.path / "baselines.json", _json(baselines), sync=True)

    def eval_digests(self) -> dict[str, dict[str, str]]:
        """task key → split → digest of the evaluation that the baselines were measured on."""
        path = self.path / "evaluations.json"
        if not path.exists():
            return {}
        with _plainly(path):
            return serialize.loads(path.read_bytes(), dict[str, dict[str, str]])

    def write_eval_digests(self, digests: Mapping[str, Mapping[str, str]]) -> None:
        """Record them."""
        write_atomic(self.path / "evaluations.json", json.dumps(digests).encode(), sync=True)

    # -- episodes

    def episode_dir(self, group: int, member: int, *, under: str = "episodes") -> Path:
        """Where one episode lives. `under` is "episodes", or "evals/<name>/episodes"."""
        return self.path / under / f"{group:05d}-{member}"

    def write_episode(
        self, episode: Episode, *, files: Mapping[int, Mapping[str, str]], under: str = "episodes"
    ) -> None:
        """Write an episode, reward.json last: it exists exactly when the episode is whole. `files` by attempt.

        What an earlier try at the same episode has left goes first, so that nothing of it is taken for a part of this one.
        """
        root = self.episode_dir(episode.group, episode.member, under=under)
        with _plainly(root):
            (root / "reward.json").unlink(missing_ok=True)
            for older in (root / "attempts", root / "jobs"):
                if older.exists():
                    shutil.rmtree(older)
        lines = b"".join(_json(part) + b"\n" for part in episode.transcript.conversation)
        write_atomic(root / "transcript.jsonl", lines)
        for attempt, validation in enumerate(episode.validations, 1):
            folder = root / "attempts" / str(attempt)
            write_atomic(folder / "validation.json", _json(validation))
            for name, text in files.get(attempt, {}).items():
                write_atomic(_inside(folder / "files", redact.known(name)), redact.known(text).encode())
        for number, job in enumerate(_submitted(episode), 1):
            folder = root / "jobs" / str(number)
            for name, text in files.get(job.attempt, {}).items():
                write_atomic(_inside(folder / "job", name), text.encode())
            write_atomic(folder / "result.json", _json(job.result))
        write_atomic(root / "reward.json", _json(_summary(episode)), sync=True)

    def pay(self, episode: Episode, reward: float, parts: Mapping[str, float], *, under: str = "episodes") -> None:
        """Give a recorded episode another reward."""
        path = self.episode_dir(episode.group, episode.member, under=under) / "reward.json"
        with _plainly(path):
            row = json.loads(path.read_bytes())
        write_atomic(path, _json({**row, "reward": reward, "parts": dict(parts)}), sync=True)

    def read_episode(self, group: int, member: int, *, under: str = "episodes") -> Episode | None:
        """A whole episode, or None if it was never finished."""
        return _read_episode(self.episode_dir(group, member, under=under))

    def episodes(
        self, *, under: str = "episodes", left_out: dict[str, str] | None = None, but: Container[str] = ()
    ) -> Iterator[Episode]:
        """Every whole episode, by group and member; those in folders of the names in `but` are not read.

        One that cannot be read raises RunDirError; with `left_out` it is passed over, and noted there: name of its folder → why.
        """
        for root in sorted(path for path in (self.path / under).glob("*-*") if path.name not in but):
            try:
                episode = _read_episode(root)
            except RunDirError as error:
                if left_out is None:
                    raise
                left_out[root.name] = str(error)
                continue
            if episode is not None:
                yield episode

    # -- evaluations

    def evals(self) -> dict[str, dict[str, JSON]]:
        """Reports of the evaluations done so far, by name."""
        found = sorted((self.path / "evals").glob("*/report.json"))
        with _plainly(self.path / "evals"):
            return {path.parent.name: json.loads(path.read_bytes()) for path in found}

    def write_eval(self, name: str, report: Mapping[str, JSON]) -> None:
        """Record one evaluation."""
        write_atomic(
            self.path / "evals" / name / "report.json", json.dumps(redact.data(report), indent=1).encode(), sync=True
        )


def _inside(folder: Path, name: str) -> Path:
    """Where a job's file goes. A harness of one's own may hand in any name; none leads out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.name:
        raise SettingsError(f"{name!r} is no name for a file of a job")
    return folder / path


def _json(value: object) -> bytes:
    """One line of JSON without secrets."""
    return serialize.dumps(value, clean=redact.data).encode()


def _without_none(value: JSON) -> JSON:
    """TOML has no null: a missing key says the same."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def _summary(episode: Episode) -> dict[str, JSON]:
    """Everything of an episode that has no file of its own."""
    return {
        "group": episode.group,
        "member": episode.member,
        "version": episode.version,
        "task": serialize.to_json(episode.task),
        "outcome": serialize.to_json(episode.outcome),
        "reward": episode.reward,
        "parts": dict(episode.parts),
        "masked": episode.masked,
        "job_key": episode.job_key,
        "jobs": [{"attempt": job.attempt, "key": job.key, "chosen": job.chosen} for job in _submitted(episode)],
        "agent_s": episode.agent_s,
        "agent_usd": episode.agent_usd,
        "transcript": {
            "end": episode.transcript.end,
            "truncated": episode.transcript.truncated,
            "asked_baselines": episode.transcript.asked_baselines,
        },
    }


def _submitted(episode: Episode) -> tuple[Submitted, ...]:
    """Its jobs; an episode of another's making may tell its one result only."""
    if episode.jobs or episode.result is None:
        return episode.jobs
    return (Submitted(attempt=len(episode.validations), key=episode.job_key, result=episode.result),)


def _jobs(row: Mapping[str, JSON], attempts: int, root: Path) -> list[dict[str, JSON]]:
    """What is told of each job. An episode that an earlier version wrote has at most one, of the last attempt."""
    if "jobs" in row:
        return list(row["jobs"])
    one = (root / "jobs" / "1" / "result.json").exists()
    return [{"attempt": attempts, "key": row["job_key"], "chosen": True}] if one else []


def _read_episode(root: Path) -> Episode | None:
    path = root / "reward.json"
    if not path.is_file():
        return None
    with _plainly(path):
        row = json.loads(path.read_bytes())
    with _plainly(root):
        lines = (root / "transcript.jsonl").read_bytes().splitlines()
        attempts = sorted((root / "attempts").glob("*/validation.json"), key=lambda p: int(p.parent.name))
        validations = tuple(serialize.loads(p.read_bytes(), Validation) for p in attempts)
        jobs = tuple(
            Submitted(result=serialize.loads((root / "jobs" / str(n) / "result.json").read_bytes(), JobResult), **about)
            for n, about in enumerate(_jobs(row, len(validations), root), 1)
        )
        conversation = tuple(serialize.loads(line, Message | Turn) for line in lines)
        return Episode(
            **{k: row[k] for k in ("group", "member", "version", "reward", "parts", "masked", "job_key")},
            agent_s=row["agent_s"],
            agent_usd=row["agent_usd"],
            task=serialize.from_json(row["task"], Task),
            transcript=Transcript(conversation=conversation, **row["transcript"]),
            outcome=serialize.from_json(row["outcome"], Outcome),
            validations=validations,
            result=next((job.result for job in jobs if job.chosen), None),
            jobs=jobs,
        )
