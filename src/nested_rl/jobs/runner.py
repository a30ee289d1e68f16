"""Inside the walls: load environment.py from text and answer the controller's questions. Standard library only.

One request, one reply with the request's nonce. Whatever the agent's code does becomes a reply or the end of this process; what
it prints goes to the log.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from nested_rl.jobs import wire

MODULES: Final = (
    "__future__", "abc", "ast", "bisect", "collections", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "difflib", "enum",
    "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "random", "re",
    "statistics", "string", "textwrap", "time", "typing", "unicodedata",
)  # fmt: skip
"""What environment.py may import; loaded before the walls go up, since nothing can be loaded after."""

READY: Final = "ready"
"""The first frame of an environment: the walls are up."""

CODE: Final = "environment.py"
_TEXT_LIMIT: Final = 300


class Wrong(Exception):
    """The agent's function gave back something of the wrong kind. `kind` is "row", "count" or "number"."""

    def __init__(self, kind: str, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.row = row


def serve(pipe: int, *, log_bytes: int, environment: Environment | None = None) -> None:
    """Answer until the controller hangs up, for an `environment` of another dialect if one is given. Descriptor 1 is the log."""
    sys.stdout = sys.stderr = Log(1, log_bytes)
    sys.stdin = io.StringIO("")
    environment = environment or Environment()
    while (request := wire.read(pipe)) is not None:
        reply = {"nonce": request["nonce"], **environment.answer(request)}
        try:
            frame = wire.pack(reply)
        except (ValueError, TypeError, RecursionError):
            frame = wire.pack({"nonce": request["nonce"], "error": {"kind": "row", "message": "not JSON"}})
        wire.write(pipe, frame)


class Log(io.TextIOBase):
    """Where prints go. Past its size they are dropped, without an error in the agent's code."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._left = size

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        data = text.encode("utf-8", "backslashreplace")[: self._left]
        self._left -= len(data)
        if data:
            os.write(self._fd, data)
        return len(text)


class Environment:
    """environment.py, loaded."""

    def __init__(self) -> None:
        self._module = types.ModuleType("environment")

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """{"value": …} or {"error": {"kind", "type", "message", "line", "row"}}."""
        self._row: int | None = None
        try:
            return {"value": getattr(self, f"_{request['op']}")(request)}
        except Wrong as wrong:
            return {"error": {"kind": wrong.kind, "message": str(wrong)[:_TEXT_LIMIT], "row": wrong.row}}
        except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt of the agent's making
            return {"error": {"kind": "raised", **described(error), "row": self._row}}

    def _load(self, request: Mapping[str, Any]) -> None:
        source, data = request["source"], request["data"]
        scope = self._module.__dict__
        scope["open"] = _opener(data)
        sys.modules["environment"] = self._module  # dataclasses look themselves up here
        exec(compile(source, CODE, "exec", dont_inherit=True), scope)  # noqa: S102 - this process is the sandbox

    def _examples(self, request: Mapping[str, Any]) -> list[list[str]]:
        seed, n = request["seed"], request["n"]
        random.seed(seed)  # an author who forgets `rng` is repeatable all the same
        rows = self._function("examples")(random.Random(seed), n)
        try:
            rows = iter(rows)
        except TypeError:
            raise Wrong("row", f"examples returned {_short(rows)}, not a list of rows") from None
        return [_row(i, row) for i, row in enumerate(itertools.islice(rows, n))]

    def _rewards(self, request: Mapping[str, Any]) -> list[float]:
        reward = self._function("reward")
        values = []
        for self._row, (prompt, completion, answer) in enumerate(request["rows"]):
            values.append(_number(self._row, reward(prompt, completion, answer)))
        return values

    def _function(self, name: str) -> Callable[..., Any]:
        function = self._module.__dict__.get(name)
        if not callable(function):
            raise Wrong("number" if name == "reward" else "row", f"{name} is {_short(function)}, not a function")
        return function  # type: ignore[no-any-return]


def described(error: BaseException) -> dict[str, Any]:
    """Type, message and line in environment.py of what the agent's code raised; none of it can raise again."""
    try:
        message = str(error)[:_TEXT_LIMIT]
    except BaseException:  # noqa: BLE001 - a hostile __str__
        message = ""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == CODE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename == CODE:
        line = error.lineno
    return {"type": type(error).__name__[:80], "message": message, "line": line}


def _row(index: int, row: Any) -> list[str]:
    if not isinstance(row, Mapping):
        raise Wrong("row", f"row {index} is {_short(row)}, not a dict with prompt and answer", index)
    for key in ("prompt", "answer"):
        if key not in row:
            raise Wrong("row", f"row {index} has no {key!r}; it is {_short(row)}", index)
        if not isinstance(row[key], str):
            raise Wrong("row", f"{key!r} of row {index} is {_short(row[key])}, not a string", index)
    return [row["prompt"], row["answer"]]


def _number(index: int, value: Any) -> float:
    """True and False are numbers here: `return completion == answer` is a natural reward."""
    if not isinstance(value, int | float):
        raise Wrong("number", f"reward returned {_short(value)}, not a number", index)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Wrong("number", f"reward returned {number}, not a finite number", index)
    return number


def _short(value: Any) -> str:
    try:
        text = ascii(value)
    except BaseException:  # noqa: BLE001 - a hostile __repr__
        text = "something"
    return f"{text[:80]} ({type(value).__name__[:40]})"


def _opener(data: Mapping[str, str]) -> Callable[..., io.StringIO]:
    def open_(path: str, mode: str = "r", *_: Any, **__: Any) -> io.StringIO:
        """The job's own data files, from memory."""
        if path not in data or mode not in {"r", "rt"}:
            raise PermissionError(f"open({path!r}): only the job's own data can be read: {', '.join(data) or 'none'}")
        return io.StringIO(data[path])

    return open_
