"""The record of which weights a base's name means: written the first time, enforced afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from attrs import evolve, field, frozen

from nested_rl import serialize
from nested_rl.errors import SettingsError

FILE = "bases.lock.json"
VARIABLE = "NESTED_RL_BASES_LOCK"
"""Another place for the user's lock file."""


@frozen(kw_only=True)
class Record:
    """One base: its revision on the Hub ("" for a folder of one's own) and the sha256 of every file."""

    revision: str = ""
    files: Mapping[str, str] = field(factory=dict)

    @property
    def sha256(self) -> str:
        """Of all files and their names: what to cite."""
        lines = (f"{name} {self.files[name]}\n" for name in sorted(self.files))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class Lock:
    """A lock file at `path`, made when there is something to write. Several processes may use it at once."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def of_user(cls) -> Self:
        """`$NESTED_RL_BASES_LOCK`, or `nested-rl/bases.lock.json` among the user's settings."""
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return cls(os.environ.get(VARIABLE) or settings / "nested-rl" / FILE)

    def read(self, base: str) -> Record | None:
        """What is recorded of a base. Raises SettingsError for a damaged file."""
        return self._all().get(base)

    def settle(self, base: str, found: Record) -> Record:
        """What is recorded of a base; if that is nothing, `found` is recorded."""
        with self._alone():
            records = self._all()
            if base not in records:
                records[base] = found
                self._write(records)
            kept = records[base]
            if not kept.revision and found.revision and kept.files == found.files:
                records[base] = kept = evolve(kept, revision=found.revision)
                self._write(records)
        return kept

    def _all(self) -> dict[str, Record]:
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be read ({error.strerror})") from error
        try:
            entries = json.loads(text)
            return {base: _record(entry) for base, entry in entries.items()}
        except (ValueError, AttributeError) as error:
            raise SettingsError(f"{self.path}: {error}; correct it, or remove it to record all bases anew") from None

    def _write(self, records: Mapping[str, Record]) -> None:
        data = {base: {**serialize.to_json(r), "sha256": r.sha256} for base, r in sorted(records.items())}
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
        temporary.replace(self.path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            guard = self.path.with_name(f".{self.path.name}.guard").open("w")
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be written ({error.strerror}); set {VARIABLE}") from error
        with guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield


def _record(entry: Mapping[str, object]) -> Record:
    record = serialize.from_json({key: value for key, value in entry.items() if key != "sha256"}, Record)
    if entry.get("sha256", record.sha256) != record.sha256:
        raise SettingsError("an entry's sha256 is not that of its files")
    return record
