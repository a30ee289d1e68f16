"""One job's environment.py in its own confined process, as the controller sees it: questions with deadlines, typed faults."""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, Self

from attrs import field, frozen, validators

from nested_rl.jobs import runner, wire
from nested_rl.jobs.faults import (
    During,
    EnvironmentCrashed,
    EnvironmentMisbehaved,
    EnvironmentTimeout,
    SandboxError,
    SandboxUnavailable,
)

_DURING: Final[Mapping[str, During]] = {
    "load": "environment",
    "examples": "examples",
    "rewards": "reward",
    "describe": "examples",
}
_CPU_SIGNALS: Final = (-signal.SIGKILL, -signal.SIGXCPU)


@frozen(kw_only=True)
class Limits:
    """What one environment may use in all, and how long each call may take.

    `cpu_s` is processor time over its whole life, `memory_mib` address space, `call_s` the wall time of a call that has no
    deadline of its own, `life_s` that of all its calls together, so that one that sleeps does not hold its place for long.
    Wall limits only catch hangs: keep them generous.
    """

    cpu_s: int = field(default=5, validator=validators.ge(1))
    memory_mib: int = field(default=512, validator=validators.ge(64))
    call_s: float = field(default=20.0, validator=validators.gt(0))
    life_s: float = field(default=math.inf, validator=validators.gt(0))
    log_bytes: int = 16_384
    reply_bytes: int = 4_194_304


class Environment:
    """One job's environment.py, alive in its own process. Not for several threads at once."""

    def __init__(
        self, end: Callable[[], Mapping[str, Any]], pipe: socket.socket, log: IO[bytes], limits: Limits
    ) -> None:
        self._end = end
        self._pipe = pipe
        self._log = log
        self._limits = limits
        self._over: SandboxError | None = None
        self._last_log = ""
        self._asked_s = 0.0

    def examples(self, seed: int, n: int, timeout_s: float | None = None) -> list[dict[str, str]]:
        """At most `n` rows of `prompt` and `answer`, from `examples(random.Random(seed), n)`."""
        rows = self._ask("examples", timeout_s, seed=seed, n=n)
        if not isinstance(rows, list) or len(rows) > n or not all(_is_row(row) for row in rows):
            raise EnvironmentMisbehaved("examples gave text that is not Unicode", during="examples", kind="row")
        return [{"prompt": prompt, "answer": answer} for prompt, answer in rows]

    def rewards(self, rows: Sequence[Mapping[str, str]], timeout_s: float | None = None) -> list[float]:
        """One finite number for each row of `prompt`, `completion` and `answer`. True and False count as 1 and 0."""
        asked = [[row["prompt"], row["completion"], row["answer"]] for row in rows]
        values = self._ask("rewards", timeout_s, rows=asked)
        if not isinstance(values, list) or len(values) != len(rows) or not all(_is_number(value) for value in values):
            raise self._stop(_forged("reward"))
        return [float(value) for value in values]

    def describe(self, **request: object) -> Any:
        """What an environment of another dialect says of itself, as it says it."""
        return self._ask("describe", None, **request)

    @property
    def log(self) -> str:
        """What the code has printed so far, cut to `Limits.log_bytes`."""
        if not self._log.closed:
            self._last_log = os.pread(self._log.fileno(), self._limits.log_bytes, 0).decode("utf-8", "replace")
        return self._last_log

    @property
    def alive(self) -> bool:
        """Whether it can be asked again: it has not ended, and nothing has gone so wrong that it was killed."""
        return self._over is None

    def close(self) -> None:
        """Kill it with everything it started, and see it dead."""
        if self._over is None:
            self._stop(SandboxUnavailable("the environment is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- one question, one answer

    def load(self, source: str, data: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Run environment.py's top level. Called by the zygote, once. `settings` are for other dialects than the plain one."""
        self._receive(time.monotonic() + self._limits.call_s, "environment", first=True)
        self._ask("load", None, source=source, data=dict(data), settings=dict(settings))

    def _ask(self, op: str, timeout_s: float | None, **request: object) -> Any:
        if self._over is not None:
            raise self._over
        during, nonce = _DURING[op], secrets.token_hex(8)
        seconds = self._limits.call_s if timeout_s is None else timeout_s
        left = self._limits.life_s - self._asked_s
        started = time.monotonic()
        deadline = started + min(seconds, left)
        try:
            self._pipe.settimeout(max(0.001, min(seconds, left)))
            self._pipe.sendall(wire.pack({"op": op, "nonce": nonce, **request}))
            reply = self._receive(deadline, during)
        except TimeoutError:
            why = f"{_subject(during)} took longer than {seconds:g} s"
            if left <= seconds:
                why = f"environment.py took longer than {self._limits.life_s:g} s in all"
            raise self._stop(EnvironmentTimeout(why, during=during)) from None
        except ConnectionError:
            raise self._ended(during) from None
        finally:
            self._asked_s += time.monotonic() - started
        said = reply.get("nonce") if isinstance(reply, dict) else None
        if not isinstance(said, str) or not secrets.compare_digest(said.encode("utf-8", "replace"), nonce.encode()):
            raise self._stop(_forged(during))
        if (error := reply.get("error")) is not None:
            raise self._fault(error, during)
        return reply.get("value")

    def _receive(self, deadline: float, during: During, *, first: bool = False) -> Any:
        """One frame. TimeoutError past the deadline, ConnectionError when the process is gone."""
        count = wire.size(self._exactly(wire.HEADER, deadline))
        if count > self._limits.reply_bytes:
            message = f"{_subject(during)} gave more than can be sent"
            raise self._stop(EnvironmentMisbehaved(message, during=during, kind="size"))
        try:
            reply = wire.unpack(self._exactly(count, deadline))
        except ValueError:
            raise self._stop(_forged(during)) from None
        if first and reply != runner.READY:
            raise self._stop(SandboxUnavailable("the environment's process did not start"))
        return reply

    def _exactly(self, count: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._pipe.settimeout(left)
            part = self._pipe.recv(min(1 << 20, count - len(parts)))
            if not part:
                raise ConnectionResetError
            parts += part
        return bytes(parts)

    # ---- how it can end

    def _fault(self, error: object, during: During) -> SandboxError:
        """What the runner reported. Its fields passed through the agent's process: nothing in them is trusted."""
        if not isinstance(error, dict):
            return self._stop(_forged(during))
        kind, message = _words(error.get("kind"), 20), _words(error.get("message"), 400)
        row, line = _place(error.get("row")), _place(error.get("line"))
        if kind != "raised":
            return EnvironmentMisbehaved(message, during=during, kind=kind, row=row)
        raised = _words(error.get("type"), 80)
        where = f" in line {line}" if line else ""
        why = f"{_subject(during)} raised {raised}{where}: {message}"
        return EnvironmentCrashed(why, during=during, raised=raised, line=line, row=row)

    def _ended(self, during: During) -> SandboxError:
        """The process is gone: find out how it went."""
        end = self._kill()
        if isinstance(end, SandboxError):
            return self._stop(end)
        status, cpu_s = end["status"], end["cpu_s"]
        if status in _CPU_SIGNALS and cpu_s >= 0.5 * self._limits.cpu_s:  # the kernel's limit counts in coarse ticks
            why = f"{_subject(during)} used all of its {self._limits.cpu_s} s of processor time"
            return self._stop(EnvironmentTimeout(why, during=during))
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        why = f"{_subject(during)} ended its process ({how}) instead of returning"
        return self._stop(EnvironmentCrashed(why, during=during))

    def _stop(self, error: SandboxError) -> SandboxError:
        """Kill what is left; every later call raises the same error."""
        if self._over is None:
            self._over = error
            self._kill()
        return self._over

    def _kill(self) -> Mapping[str, Any] | SandboxUnavailable:
        if self._log.closed:
            return {"status": 0, "cpu_s": 0.0}
        try:
            return self._end()
        except OSError as error:
            return SandboxUnavailable(f"the zygote is gone: {error}")
        finally:
            self._last_log = self.log
            self._log.close()
            self._pipe.close()


def _subject(during: During) -> str:
    return "environment.py" if during == "environment" else during


def _forged(during: During) -> EnvironmentMisbehaved:
    return EnvironmentMisbehaved(f"{_subject(during)} gave no proper reply", during=during)


def _words(said: object, most: int) -> str:
    """Text that can be stored and sent, whatever was said."""
    return said[:most].encode("utf-8", "replace").decode() if isinstance(said, str) else "?"


def _place(said: object) -> int | None:
    """A number of a line or row, if it is one."""
    return said if type(said) is int and 0 <= said < 1_000_000 else None


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 2 or not all(isinstance(text, str) for text in row):
        return False
    try:
        "".join(row).encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
