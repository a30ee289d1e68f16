"""The controller's hold on one zygote process: start it, ask it to fork and to kill, end it."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nested_rl.jobs import wire
from nested_rl.jobs.confine import Level

_START_S = 60.0
_CALL_S = 20.0
_BOOT = "import sys; sys.path += sys.argv.pop(1).split(':'); from nested_rl.jobs.zygote import main; main()"
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "PYTHONHASHSEED": "0",  # the same job orders its sets the same way everywhere
    "OPENBLAS_NUM_THREADS": "1",  # a process with threads may not enter new namespaces
    "OMP_NUM_THREADS": "1",
}


class Nursery:
    """A running zygote process. Thread-safe. Raises OSError when the process fails.

    The thread that starts it lives as long as the process: the kernel kills the process when that thread is gone.
    """

    def __init__(
        self,
        *,
        python: str | None,
        kit: bool,
        strongest: Level,
        families: Sequence[Path] = (),
        runner: str = "nested_rl.jobs.runner",
    ) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._control, theirs = socket.socketpair()
        command = [python or sys.executable, "-s", "-P", "-B", "-c", _BOOT, _path(python)]
        command += ["--control", str(theirs.fileno()), "--strongest", strongest, "--runner", runner]
        command += ["--kit"] if kit else []
        command += [word for folder in families for word in ("--family", str(folder))]
        started = threading.Event()
        with theirs, tempfile.TemporaryFile() as errors:
            self._keeper = threading.Thread(
                target=self._keep, args=(command, theirs.fileno(), errors.fileno(), started), daemon=True
            )
            self._process: subprocess.Popen[bytes] | None = None
            self._keeper.start()
            started.wait()
            theirs.close()
            try:
                self._control.settimeout(_START_S)
                self.level: Level = self._reply()["level"]
            except OSError:
                self.close()
                said = os.pread(errors.fileno(), 4_000, 0).decode("utf-8", "replace").strip()
                raise OSError(said.rpartition("\n")[2] or "its process ended") from None

    @property
    def alive(self) -> bool:
        """Whether the process still runs and can be talked to."""
        return self._keeper.is_alive() and self._control.fileno() >= 0

    def spawn(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> Callable[[], Mapping[str, Any]]:
        """Fork an environment that gets `descriptors`. Returns what ends it: {"status", "cpu_s"}."""
        number = next(self._ids)
        self._call({"op": "spawn", "id": number, **request}, descriptors)
        return lambda: self._call({"op": "end", "id": number})

    def close(self) -> None:
        """Hang up, and see it dead."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for a reply, which closing would not
        with self._lock:  # a descriptor that is closed under somebody's hands may be another one's by then
            self._control.close()
        self._keeper.join(2.0)
        if self._keeper.is_alive() and self._process is not None:
            self._process.kill()
            self._keeper.join()

    def _keep(self, command: Sequence[str], control: int, errors: int, started: threading.Event) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[control],
                cwd="/",
                env=_ENVIRONMENT,
                start_new_session=True,  # Ctrl-C is for the controller
            )
        except OSError as error:
            os.write(errors, f"{error}\n".encode())
            return
        finally:
            started.set()
        self._process.wait()

    def _call(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Mapping[str, Any]:
        with self._lock:
            self._control.settimeout(_CALL_S)
            try:
                frame = wire.pack(request)
                if descriptors:
                    socket.send_fds(self._control, [frame], descriptors)
                else:
                    self._control.sendall(frame)
                reply = self._reply()
            except OSError:
                self._control.close()  # a late reply must not be taken for the next one
                raise
        if "error" in reply:
            raise OSError(reply["error"])
        return reply

    def _reply(self) -> Mapping[str, Any]:
        header = self._control.recv(wire.HEADER, socket.MSG_WAITALL)
        body = self._control.recv(wire.size(header), socket.MSG_WAITALL) if len(header) == wire.HEADER else b""
        if not body:
            raise ConnectionResetError("the zygote hung up")
        reply: Mapping[str, Any] = wire.unpack(body)
        return reply


def _path(python: str | None) -> str:
    """Where the process finds this package and what it needs: as we do, or, in another interpreter, beside its own packages."""
    package = str(Path(__file__).resolve().parents[2])
    ours = [entry for entry in sys.path if Path(entry).is_absolute()] if python in (None, sys.executable) else []
    return os.pathsep.join([package, *ours])
