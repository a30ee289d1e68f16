"""The process that environments are forked from: warm, confined, and without anything worth stealing. Standard library only.

The controller starts it with a socket; for each request it forks one child, puts it inside the walls and hands it its own
socket. It never runs agent-written code itself. It ends when the controller hangs up or dies, and all environments with it.
"""

from __future__ import annotations

import argparse
import array
import gc
import importlib
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from nested_rl.jobs import runner, wire
from nested_rl.jobs.confine import Walls

_CODECS: Final = ("ascii", "latin_1", "utf_8", "utf_16", "utf_32", "unicode_escape", "raw_unicode_escape")
_PIPE: Final = 3


def main() -> None:
    """Run until the controller hangs up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--strongest", default="namespaces")
    parser.add_argument("--runner", default=runner.__name__)
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--family", action="append", default=[])
    arguments = parser.parse_args()
    serving = importlib.import_module(arguments.runner)
    for module in (*serving.MODULES, *(f"encodings.{codec}" for codec in _CODECS)):
        importlib.import_module(module)
    if hasattr(serving, "warm"):
        serving.warm()
    if arguments.kit:
        kit = importlib.import_module("nested_rl.jobkit")
        kit.warm()
        if arguments.family:
            kit.warm(*arguments.family)
    gc.collect()
    gc.freeze()  # children share these objects without copying them
    walls = Walls.build(arguments.strongest)
    with socket.socket(fileno=arguments.control) as control:
        wire.write(control.fileno(), wire.pack({"level": walls.level}))
        Zygote(control, walls, serving).serve()


class Zygote:
    """Forks and ends environments, as the controller asks. One request at a time, each quick.

    `serving` is the module whose `serve` answers for an environment. What it has loaded does not count as an environment's memory.
    """

    def __init__(self, control: socket.socket, walls: Walls, serving: ModuleType = runner) -> None:
        self._control = control
        self._walls = walls
        self._serving = serving
        self._loaded = 0 if serving is runner else _address_space()
        self._pids: dict[int, int] = {}
        self._null = os.open(os.devnull, os.O_RDWR)

    def serve(self) -> None:
        """Answer until the other end is closed."""
        while (received := self._receive()) is not None:
            request, descriptors = received
            try:
                reply = getattr(self, f"_{request['op']}")(request, descriptors)
            except OSError as error:
                reply = {"error": str(error)}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            wire.write(self._control.fileno(), wire.pack(reply))
        for pid in self._pids.values():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """A request with the descriptors that came along."""
        fds = array.array("i")
        room = socket.CMSG_SPACE(2 * fds.itemsize)
        header, extra, _, _ = self._control.recvmsg(wire.HEADER, room, socket.MSG_WAITALL)
        if len(header) < wire.HEADER:
            return None
        for level, kind, data in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        body = self._control.recv(wire.size(header), socket.MSG_WAITALL)
        return wire.unpack(body), list(fds)

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        pipe, log = descriptors
        pid = self._walls.fork()
        if pid == 0:
            self._child(request, pipe, log)
        self._pids[request["id"]] = pid
        return {}

    def _child(self, request: dict[str, Any], pipe: int, log: int) -> None:
        """Never returns."""
        code = 70
        try:
            pipe, log = os.dup(pipe), os.dup(log)  # out of the way of 0 to 3
            for source, target in ((self._null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            self._control.detach()
            pipe = _alone(pipe)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            self._walls.enter(
                cpu_s=request["cpu_s"],
                memory_bytes=self._loaded + request["memory_bytes"],
                file_bytes=request["log_bytes"],
            )
            wire.write(pipe, wire.pack(runner.READY))
            self._serving.serve(pipe, log_bytes=request["log_bytes"])
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may unwind into the zygote's loop
            with suppress(BaseException):
                sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _end(self, request: dict[str, Any], _descriptors: list[int]) -> dict[str, Any]:
        """Kill an environment with all it started, wait until it is dead, and say how it had ended."""
        pid = self._pids.pop(request["id"])
        with suppress(OSError):  # without namespaces: its session, for what it may have started
            os.killpg(pid, signal.SIGKILL)
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        return {"status": os.waitstatus_to_exitcode(status), "cpu_s": usage.ru_utime + usage.ru_stime}


def _address_space() -> int:
    """Bytes of address space that this process has taken, 0 where that cannot be known."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def _alone(pipe: int) -> int:
    """Keep descriptors 0 to 2 and `pipe`, as 3."""
    if pipe != _PIPE:
        os.dup2(pipe, _PIPE)
    os.closerange(_PIPE + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return _PIPE
