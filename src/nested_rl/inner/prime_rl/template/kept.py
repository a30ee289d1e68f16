"""A job's own taskset, without the tasks that belong to an evaluation."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import verifiers.v1 as vf

job = importlib.import_module(f"{__package__}.environment")
log = logging.getLogger(__name__)

_BOOT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nested_rl import tasks
held_out = tasks.held_out(tasks.load())
for line in sys.stdin:
    print(json.dumps(held_out(json.loads(line))), flush=True)
"""
_COMMAND = [sys.executable, "-s", "-P", "-c", _BOOT, str(Path(__file__).with_name("grading"))]
_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


class HeldOut:
    """Tells whether a prompt belongs to an evaluation: a program that knows the families and not the job."""

    def __enter__(self) -> Self:
        self._program = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT, cwd="/"
        )
        return self

    def __call__(self, prompt: str) -> bool:
        """RuntimeError when the program has failed."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        try:
            self._program.stdin.write(json.dumps(prompt).encode() + b"\n")
            self._program.stdin.flush()
            return bool(json.loads(self._program.stdout.readline()))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the program that knows the evaluations failed: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.kill()
        self._program.communicate()


def without_held_out(load: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterator[Any]]:
    """`load`, which leaves out what belongs to an evaluation. RuntimeError when nothing is left."""

    @functools.wraps(load)
    def kept(self: Any) -> Iterator[Any]:
        count = dropped = 0
        with HeldOut() as held_out:
            for task in load(self):
                if held_out(task.data.prompt_text):
                    dropped += 1
                else:
                    count += 1
                    yield task
        log.info("%d tasks; %d more belong to the evaluations and were dropped", count, dropped)
        if not count:
            raise RuntimeError(f"no task is left: {dropped} belong to the evaluations")

    return kept


def _taskset() -> type[Any]:
    """The one that the job exports; the probe has seen that there is one."""
    found = [getattr(job, name, None) for name in job.__all__]
    (only,) = (one for one in found if isinstance(one, type) and issubclass(one, vf.Taskset) and one is not vf.Taskset)
    return only


Only = _taskset()
Only.load = without_held_out(Only.load)
__all__ = ["Only"]
