"""Questions and answers as JSON lines between the controller and a warm program on a machine.

A program answers one line at a time and echoes the question's nonce. It keeps its real standard input and output to
itself (`Lines.claim`): nothing that runs inside it can read a question or forge an answer by printing.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from nested_rl.errors import InfraFault, MachineLost
from nested_rl.interfaces import Machine, Process

Answer = dict[str, Any]

ENVIRONMENT: Mapping[str, str] = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}
"""One BLAS thread before numpy loads, and the same order of everything in every process."""


class OutOfTime(Exception):
    """No answer within the limit; the program has been killed."""


async def ask(
    machine: Machine, key: str, argv: Sequence[str], question: Mapping[str, Any], *, timeout_s: float
) -> Answer:
    """Ask the resident `key` of a machine one question.

    Raises MachineLost when the program died or answered out of turn, InfraFault when it says that it failed itself,
    OutOfTime past `timeout_s`. A program that was asked and not heard to the end is killed: its next answer would
    belong to nobody.
    """
    try:
        process = await machine.resident(key, argv, env=ENVIRONMENT)
    except OSError as error:
        raise MachineLost(f"{key} does not start on {machine.id}: {error}") from error
    nonce = secrets.token_hex(16)
    try:
        async with asyncio.timeout(timeout_s):
            await process.write(json.dumps({**question, "nonce": nonce}).encode() + b"\n")
            line = await process.readline()
        answer = _checked(line, nonce, f"{key} on {machine.id}", process)
    except TimeoutError:
        await process.kill()
        raise OutOfTime(f"{key} on {machine.id} gave no answer in {timeout_s:g} s") from None
    except OSError as error:
        await process.kill()
        raise MachineLost(f"{key} on {machine.id} cannot be reached: {error}") from error
    except BaseException:
        await process.kill()
        raise
    if "error" in answer:
        raise InfraFault(f"{key} on {machine.id} failed: {answer['error']}")
    return answer


def _checked(line: bytes, nonce: str, who: str, process: Process) -> Answer:
    if not line.endswith(b"\n"):
        raise MachineLost(f"{who} died before it answered; its last words: {getattr(process, 'last_words', 'unknown')}")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise MachineLost(f"{who} answered with something that is not JSON: {line[:80]!r}") from None
    if not isinstance(answer, dict) or answer.pop("nonce", None) != nonce:
        raise MachineLost(f"{who} answered another question")
    return answer


class Lines:
    """The program's side."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink

    @classmethod
    def claim(cls) -> Lines:
        """Take standard input and output; what is printed from now on goes to standard error, reads find the end."""
        source, sink = os.dup(0), os.dup(1)  # closed on exec, so that no child gets them
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return cls(os.fdopen(source, "rb"), os.fdopen(sink, "wb"))

    def serve(self, answer: Callable[[Answer], Mapping[str, Any]]) -> None:
        """Answer every question until the input ends. What `answer` raises becomes an `error` of this program's own."""
        for line in self._source:
            question = json.loads(line)
            nonce = question.pop("nonce")
            try:
                reply = answer(question)
            except Exception as error:  # noqa: BLE001 - told to the controller, which knows what to do about it
                traceback.print_exc(file=sys.stderr)
                reply = {"error": f"{type(error).__name__}: {error}"}
            self._sink.write(json.dumps({**reply, "nonce": nonce}).encode() + b"\n")
            self._sink.flush()
