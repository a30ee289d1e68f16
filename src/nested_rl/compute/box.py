"""A folder, the programs started for it, and the certainty that none of them outlives it: what a machine is made of.

Used by this computer's machines and, unchanged, by the host program on remote ones; so it imports little, and nothing that is not
in the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from nested_rl.compute import orphans
from nested_rl.compute.child import Child
from nested_rl.compute.rooted import Root
from nested_rl.errors import SettingsError

ONE_THREAD: Mapping[str, str] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""What is warm shares the computer with other machines; more threads would only fight."""


class Box:
    """A folder and the programs started for it. `python` at the start of an argv is the backend's interpreter."""

    def __init__(
        self,
        id: str,  # noqa: A002
        *,
        folder: Path,
        python: str,
        orphans: Orphans,
        warm_env: Mapping[str, str] = ONE_THREAD,
    ) -> None:
        self.id = id
        self.root = str(folder)
        self._files = Root(folder)
        self._python = python
        self._orphans = orphans
        self._warm_env = warm_env
        self._lease = 0
        self._children: list[Child] = []
        self._residents: dict[str, Child] = {}
        self._warming = asyncio.Lock()

    async def collect(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> tuple[int, str, str]:
        """Run to the end: exit status and both outputs. Past `timeout_s` it is killed and TimeoutError is raised."""
        child = await self._start(argv, env or {}, collect=True)
        try:
            async with asyncio.timeout(timeout_s):
                status = await child.wait()
        except TimeoutError:
            raise TimeoutError(f"{argv[0]} on {self.id}: not done after {timeout_s:g} s, and killed") from None
        finally:
            await child.kill()
        return (status, *child.output)

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        return await self._start(argv, env or {})

    async def resident(self, key: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Child:
        command = self._command(argv)
        async with self._warming:
            known = self._residents.get(key)
            if known is not None and known.alive and known.argv == command:
                return known
            if known is not None:
                await known.kill()
            child = await self._child(command, {**self._warm_env, **(env or {})}, mark="warm", collect=False)
            self._residents[key] = child
            return child

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._files.put, path, data)

    async def get(self, path: str) -> bytes:
        return await asyncio.to_thread(self._files.get, path)

    @property
    def healthy(self) -> bool:
        """Whether everything that was warmed up still runs."""
        return all(child.alive for child in self._residents.values())

    async def end_lease(self) -> bool:
        """Leave only what is warm. False when the machine cannot be used again."""
        if self._children:
            await self._kill(self._children)
            await asyncio.to_thread(orphans.end, f"{self.root}/{self._lease}")
            self._children.clear()
        self._lease += 1
        return self.healthy and await asyncio.to_thread(self._files.empty)

    async def end(self) -> None:
        """Kill everything, remove the folder."""
        await self._kill([*self._children, *self._residents.values()])
        await asyncio.to_thread(orphans.end, self.root)
        await asyncio.to_thread(self._files.remove)

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], *, collect: bool = False) -> Child:
        child = await self._child(self._command(argv), env, mark=str(self._lease), collect=collect)
        self._children.append(child)
        return child

    def _command(self, argv: Sequence[str]) -> tuple[str, ...]:
        if not argv:
            raise SettingsError(f"{self.id}: an empty command")
        return (self._python if argv[0] == "python" else argv[0], *argv[1:])

    async def _child(self, command: Sequence[str], env: Mapping[str, str], *, mark: str, collect: bool) -> Child:
        basics = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": self.root,
            "LANG": "C.UTF-8",
            orphans.MARK: f"{self.root}/{mark}",
        }
        child = await Child.start(
            command, env={**basics, **env}, cwd=self.root, collect=collect, on_end=self._orphans.forget
        )
        self._orphans.expect(child.pid)
        return child

    async def _kill(self, children: Sequence[Child]) -> None:
        for killed in await asyncio.gather(*(child.kill() for child in children), return_exceptions=True):
            if isinstance(killed, Exception):  # that somebody is in a hurry is no news
                warnings.warn(f"{self.id}: {killed}", RuntimeWarning, stacklevel=2)


class Orphans:
    """The controller's end of the pipe to orphans.py. One that died (out of memory, say) is replaced by the next `expect`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._groups: set[int] = set()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", orphans.__file__, str(self._folder)],
            stdin=subprocess.PIPE,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,  # what kills the controller's whole group leaves this one alive
        )

    def expect(self, group: int) -> None:
        """Kill this group when the controller is gone."""
        self._groups.add(group)
        new = {group}
        if self._process.poll() is not None:
            warnings.warn(
                "the watcher of this computer's machines was killed and is replaced", RuntimeWarning, stacklevel=2
            )
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process, new = self._start(), self._groups
        for known in new:
            self._tell(f"+{known}\n")

    def forget(self, group: int) -> None:
        """The group has ended; its number may be given to others."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """Let it do its work now, and wait for it."""
        assert self._process.stdin is not None
        self._tell(".\n")
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # killed, or closed
            os.write(self._process.stdin.fileno(), line.encode())
