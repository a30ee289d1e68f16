"""One SQLite file that several processes write: opened, its tables made, every failure told in one sentence."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from nested_rl.errors import RunDirError

FORMAT = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,  -- also the priority: first put, first served
    key       TEXT NOT NULL UNIQUE,
    spec      TEXT NOT NULL,                      -- JSON
    state     TEXT NOT NULL DEFAULT 'queued',
    delivery  INTEGER NOT NULL DEFAULT 0,         -- the fencing token: counts every hand-out
    tries     INTEGER NOT NULL DEFAULT 0,         -- the hand-outs that use up the job's chances
    owner     TEXT NOT NULL DEFAULT '',
    process   TEXT NOT NULL DEFAULT '',           -- of the owner, see process.py
    expires_s REAL NOT NULL DEFAULT 0,            -- monotonic
    ttl_s     REAL NOT NULL DEFAULT 0,
    error     TEXT NOT NULL DEFAULT '',           -- why the last delivery failed
    result    TEXT,                               -- JSON
    put_at    REAL NOT NULL,                      -- wall clock, for people
    done_at   REAL
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, seq);
CREATE TABLE IF NOT EXISTS late (                 -- results that came after another delivery had taken over
    seq      INTEGER NOT NULL,
    delivery INTEGER NOT NULL,
    owner    TEXT NOT NULL,
    at       REAL NOT NULL,
    result   TEXT NOT NULL
);
"""
_PAUSE_S = 0.0002, 0.001
ADVICE = {
    "SQLITE_FULL": "the disk is full; free some space and run again, nothing that was recorded is lost",
    "SQLITE_BUSY": "another process keeps it locked; see which one has the file open",
    "SQLITE_LOCKED": "another process keeps it locked; see which one has the file open",
    "SQLITE_CORRUPT": "the file is damaged; move it away and run again, finished episodes are kept elsewhere",
    "SQLITE_NOTADB": "this is no queue; move the file away and run again",
    "SQLITE_READONLY": "it cannot be written; check its permissions and those of its folder",
    "SQLITE_CANTOPEN": "it cannot be opened; check that the folder exists and may be written",
}


class SqliteFile:
    """The file at `path`, made if missing. After `close` the next use opens it again.

    Raises RunDirError when it cannot be read or written.
    """

    def __init__(self, path: Path, *, busy_s: float) -> None:
        self.path = path
        self._busy_s = busy_s
        self._connection: sqlite3.Connection | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """The open connection."""
        return self._connection or self._open()

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with self.plainly():
                connection.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One transaction that no other process can get into."""
        with self.plainly():
            self._begin()
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def _begin(self) -> None:
        """Wait for the one place that a file has for a writer.

        A turn takes a fraction of a millisecond, so that is how long is slept between two tries; SQLite's own waiting sleeps
        longer each time, up to a tenth of a second, while the place is empty.
        """
        until_s = time.monotonic() + self._busy_s
        self.db.execute("PRAGMA busy_timeout = 0")
        try:
            while True:
                try:
                    self.db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until_s:
                        raise
                    time.sleep(random.uniform(*_PAUSE_S))
                else:
                    return
        finally:
            self.db.execute(f"PRAGMA busy_timeout = {round(1000 * self._busy_s)}")

    def sync(self) -> None:
        """Wait until everything written so far is on the disk. Callers that come together share the wait.

        The same as `PRAGMA synchronous=FULL`, whose fsync of the log would hold up the event loop.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        try:
            handle = os.open(log, os.O_RDONLY)
        except FileNotFoundError:  # in memory, or the last of it has just been moved to the main file
            return
        try:
            os.fsync(handle)
        except OSError as error:
            raise RunDirError(f"{log}: {error.strerror}: the last job or result may be lost; run again") from error
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def plainly(self) -> Iterator[None]:
        """Say what is wrong with the file, and what to do, in one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            advice = next((text for code, text in ADVICE.items() if name.startswith(code)), "run again to resume")
            raise RunDirError(f"{self.path}: {error}: {advice}") from error

    def _open(self) -> sqlite3.Connection:
        with self.plainly():
            db = sqlite3.connect(self.path, timeout=self._busy_s, isolation_level=None, check_same_thread=False)
        self._connection = db
        try:
            with self.plainly():
                db.row_factory = sqlite3.Row
                db.text_factory = lambda data: data.decode(errors="replace")
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
            self._make_tables(db)
        except BaseException:
            self._connection = None
            db.close()
            raise
        return db

    def _make_tables(self, db: sqlite3.Connection) -> None:
        with self.plainly():
            found = db.execute("PRAGMA user_version").fetchone()[0]
        if found == FORMAT:
            return
        if found > FORMAT:
            raise RunDirError(f"{self.path}: written by a newer nested_rl (queue format {found}); upgrade to read it")
        with self.writing():
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={FORMAT}")
