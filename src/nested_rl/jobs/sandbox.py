"""Agent-written code, run from outside: a `Zygote` forks one confined `Environment` for each job.

    with Zygote() as zygote, zygote.spawn(files) as environment:
        rows = environment.examples(seed=0, n=8)

Blocking calls with deadlines, usable from several threads at once (one thread an environment). Every way in which the code can
misbehave is an AgentFault; only trouble of our own is an InfraFault.
"""

from __future__ import annotations

import functools
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from nested_rl.errors import SettingsError
from nested_rl.jobs import runner
from nested_rl.jobs.confine import WEAK, Level
from nested_rl.jobs.environment import Environment, Limits
from nested_rl.jobs.faults import (
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentMisbehaved,
    EnvironmentTimeout,
    SandboxError,
    SandboxUnavailable,
)
from nested_rl.jobs.nursery import Nursery

__all__ = [
    "Environment",
    "EnvironmentCrashed",
    "EnvironmentFault",
    "EnvironmentMisbehaved",
    "EnvironmentTimeout",
    "Level",
    "Limits",
    "SandboxError",
    "SandboxUnavailable",
    "Zygote",
    "require_walls",
]


def require_walls(level: Level) -> None:
    """Raises SettingsError when this level is too weak for code that a large model wrote."""
    if level in WEAK:
        raise SettingsError(
            "this computer has only resource limits to put around agent-written code, which is too little for an agent that "
            "may be clever: run on Linux with user namespaces or seccomp (nested-rl doctor tells), or accept the risk with "
            "Experiment(allow_weak_sandbox=True), or --allow-weak-sandbox of `jobs check`"
        )


class Zygote:
    """Makes environments, quickly: each is a fork of one warm process, started on first use and restarted when it died.

    `python` is the interpreter, `kit` whether `nested_rl.jobkit` is loaded for environment.py, `families` the folders of
    further families that the kit then knows by name (their code is the user's, and trusted), `strongest` the strongest
    mechanism to try (`level` says what was found), `at_once` how many probes may wait on its `threads`. `runner` is the module
    that answers for an environment: it lists what it must have loaded (MODULES), may do more of that (warm) and has `serve`.
    """

    def __init__(
        self,
        *,
        python: str | None = None,
        kit: bool = True,
        families: Sequence[Path] = (),
        strongest: Level = "namespaces",
        at_once: int = 4,
        runner: str = runner.__name__,
    ) -> None:
        self.families = tuple(families)
        self.threads = ThreadPoolExecutor(at_once, thread_name_prefix="sandbox")
        self.restarts = 0
        self._start = functools.partial(
            Nursery, python=python, kit=kit, families=self.families, strongest=strongest, runner=runner
        )
        self._nursery: Nursery | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def level(self) -> Level:
        """The mechanism in use. Starts the process if need be."""
        return self._living().level

    def spawn(
        self, files: Mapping[str, str], limits: Limits | None = None, settings: Mapping[str, Any] | None = None
    ) -> Environment:
        """environment.py of a job, loaded, with the `settings` that its dialect knows. Raises an AgentFault when its top level fails, SandboxUnavailable when we do."""
        limits = limits or Limits()
        nursery = self._living()
        try:
            return _spawn(nursery, files, limits, settings or {})
        except SandboxUnavailable:
            if nursery.alive:  # another process would fare no better, and others may be using this one
                raise
            return _spawn(self._living(), files, limits, settings or {})

    def close(self) -> None:
        """End the process and every environment, whatever they are at; then nothing can be started any more."""
        with self._lock:
            self._closed = True
            if self._nursery is not None:
                self._nursery.close()
                self._nursery = None
        self.threads.shutdown(wait=True, cancel_futures=True)  # whoever waited for an environment has its end now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _living(self) -> Nursery:
        with self._lock:
            if self._nursery is not None and not self._nursery.alive:
                self._nursery.close()
                self._nursery = None
                self.restarts += 1
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            if self._nursery is None:
                try:
                    self._nursery = self._start()
                except OSError as error:
                    raise SandboxUnavailable(f"the sandbox does not start: {error}") from error
            return self._nursery


def _spawn(nursery: Nursery, files: Mapping[str, str], limits: Limits, settings: Mapping[str, Any]) -> Environment:
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the environment
    ours, theirs = socket.socketpair()
    with theirs:
        request = {"cpu_s": limits.cpu_s, "memory_bytes": limits.memory_mib << 20, "log_bytes": limits.log_bytes}
        try:
            end = nursery.spawn(request, [theirs.fileno(), log.fileno()])
        except BaseException as error:
            log.close()
            ours.close()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"no environment could be started: {error}") from error
            raise
    environment = Environment(end, ours, log, limits)
    try:
        data = {name: text for name, text in files.items() if name.startswith("data/")}
        environment.load(files[runner.CODE], data, settings)
    except (TimeoutError, ConnectionError) as error:
        environment.close()
        raise SandboxUnavailable("the environment's process did not start") from error
    except BaseException:
        environment.close()
        raise
    return environment
