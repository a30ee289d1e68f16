"""Frames between the controller, the zygote and an environment: four bytes of length, then JSON. Standard library only."""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

HEADER = 4


def pack(value: Any) -> bytes:
    """One frame. Raises ValueError for NaN and infinities, TypeError for what JSON does not have."""
    data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return len(data).to_bytes(HEADER, "big") + data


def unpack(data: bytes) -> Any:
    """The value of a frame without its header, or ValueError. NaN and infinities are refused.

    >>> unpack(b'{"value":[0.5]}')
    {'value': [0.5]}
    """
    try:
        return json.loads(data, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("too deeply nested") from error


def size(header: bytes) -> int:
    """How many bytes follow a header."""
    return int.from_bytes(header, "big")


def read(fd: int) -> Any:
    """The next frame from a blocking descriptor, None at its end."""
    header = _exactly(fd, HEADER)
    if len(header) < HEADER:
        return None
    data = _exactly(fd, size(header))
    return unpack(data) if len(data) == size(header) else None


def write(fd: int, frame: bytes) -> None:
    """All of a frame to a blocking descriptor."""
    view = memoryview(frame)
    while view:
        view = view[os.write(fd, view) :]


def _exactly(fd: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, min(1 << 20, count - len(parts)))
        if not part:
            break
        parts += part
    return bytes(parts)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not allowed")
