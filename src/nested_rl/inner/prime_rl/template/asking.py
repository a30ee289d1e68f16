"""Questions to the grading program beside this package. Standard library only; the event loop is never held up."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nested_rl.jobs.grading import main; main()"
_COMMAND = [sys.executable, "-s", "-P", "-c", _BOOT, str(HERE / "grading"), str(HERE / "job")]
_ENVIRONMENT = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def rows(n: int, seed: int) -> tuple[list[dict[str, str]], int]:
    """At most `n` rows of the job, and how many more were dropped. RuntimeError says what is wrong with the job."""
    question = json.dumps({"id": 0, "op": "rows", "n": n, "seed": seed}).encode() + b"\n"
    done = subprocess.run(_COMMAND, input=question, capture_output=True, env=_ENVIRONMENT, cwd="/", check=False)
    try:
        reply = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the grading program failed: {done.stderr.decode(errors='replace')[-2000:]}") from None
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return reply["rows"], reply["dropped"]


class Asking:
    """The grading program of this process, started when it is first asked and again when it has died."""

    def __init__(self) -> None:
        self._program: Program | None = None
        atexit.register(self.close)

    async def reward(self, prompt: str, completion: str, answer: str) -> tuple[float, str]:
        """The reward and "", or a number that can be used and why it is not what the job returned."""
        question = {"op": "reward", "prompt": prompt, "completion": completion, "answer": answer}
        try:
            reply = await asyncio.wrap_future(self._living().ask(question))
        except OSError:  # once more: what ended it may have been another question
            reply = await asyncio.wrap_future(self._living().ask(question))
        return reply.get("value", 0.0), reply.get("fault") or reply.get("error") or ""

    def close(self) -> None:
        """End the program, if there is one."""
        program, self._program = self._program, None
        if program is not None and program.owner == os.getpid():
            program.close()

    def _living(self) -> Program:
        if self._program is not None and not self._program.alive:
            self.close()
        if self._program is None or self._program.owner != os.getpid():
            self._program = Program()
        return self._program


class Program:
    """A running grading program: questions go in as they come, a thread tells the answers apart by their id."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.alive = True
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_ENVIRONMENT, cwd="/"
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ask(self, question: dict[str, Any]) -> Future[dict[str, Any]]:
        """Its answer, in time. ConnectionError when the program has died."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if not self.alive:
                raise ConnectionError("the grading program ended")
            number = next(self._ids)
            self._waiting[number] = answer
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({"id": number, **question}).encode() + b"\n")
                self._process.stdin.flush()
            except OSError:
                self.alive = False
                del self._waiting[number]
                raise
        return answer

    def close(self) -> None:
        """Hang up, and see it end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                reply = json.loads(line)
                with self._lock:
                    answer = self._waiting.pop(reply["id"])
                if answer.set_running_or_notify_cancel():
                    answer.set_result(reply)
        with self._lock:
            self.alive = False
            left = list(self._waiting.values())
        for answer in left:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(ConnectionError("the grading program ended"))
