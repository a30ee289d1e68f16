"""safetensors files, read with bounds and written anew. Nothing is ever unpickled, and no third-party package is needed.

Whether numbers are finite is found with whole-number arithmetic on a mebibyte at a time: a value is NaN or infinite if all its
exponent bits are set, and then adding the lowest exponent bit carries into the sign's place. That is as fast as reading the disk.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES = 32 << 20
CHUNK = 1 << 20
FLOATS: Mapping[str, tuple[int, int]] = {"BF16": (2, 0x7F80), "F16": (2, 0x7C00), "F32": (4, 0x7F800000)}
"""Bytes of one number, and its exponent bits."""

Layout = Mapping[str, tuple[int, ...]]


class Refused(Exception):
    """These weights are not taken; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: its type and shape, and its place in a file that is open."""

    kind: str
    shape: tuple[int, ...]
    handle: int
    offset: int
    size: int


def read_header(handle: int, where: str) -> dict[str, Tensor]:
    """The tensors of an open file, by name. Raises Refused unless they are floats that fill it without gap or overlap."""
    total = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if total < 8 or length > min(HEADER_BYTES, total - 8):
        raise Refused(f"{where} is not a safetensors file")
    try:
        header = json.loads(os.pread(handle, length, 8))
        header.pop("__metadata__", None)
        found = {str(name): _tensor(told, handle, 8 + length) for name, told in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused(f"{where} has a header that cannot be read, or tensors that are not BF16, F16 or F32") from None
    end = 8 + length
    for name, tensor in sorted(found.items(), key=lambda item: item[1].offset):
        if tensor.offset != end or tensor.size != math.prod(tensor.shape) * FLOATS[tensor.kind][0]:
            raise Refused(f"{where}: {name[:100]} does not lie where its shape says")
        end += tensor.size
    if end != total:
        raise Refused(f"{where} is {total} bytes long, its header says {end}")
    return found


def write(
    path: Path, tensors: Mapping[str, Tensor], *, names: Mapping[str, str], kind: str | None, beat: Callable[[], None]
) -> str:
    """Copy tensors into one new file under their new `names`, as type `kind` if given (F32 is rounded to BF16); its sha256.

    Every number is looked at on the way: Refused if one is NaN or infinite.
    """
    told, offset = {"__metadata__": {"format": "pt"}}, 0
    order = sorted(tensors, key=lambda name: names[name])
    for name in order:
        tensor = tensors[name]
        type_ = kind or tensor.kind
        size = math.prod(tensor.shape) * FLOATS[type_][0]
        told[names[name]] = {"dtype": type_, "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}  # type: ignore[dict-item]
        offset += size
    header = json.dumps(told, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (len(header).to_bytes(8, "little"), header):
            digest.update(part)
            file.write(part)
        for name in order:
            for part in _checked(tensors[name], name, kind):
                digest.update(part)
                file.write(part)
                beat()
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def finite(data: bytes, kind: str) -> bool:
    r"""Whether all numbers are. `data` holds a whole number of them.

    >>> finite(b"\x80\x3f\x80\x7f", "BF16")
    False
    """
    exponents, lowest, signs = _masks(len(data), kind)
    return not ((int.from_bytes(data, "little") & exponents) + lowest) & signs


def rounded(data: bytes) -> bytes:
    r"""Finite F32 numbers as BF16, to the nearest, ties to even.

    >>> rounded(b"\x00\x00\x80\x3f").hex()
    '803f'
    """
    ones, bits = _every(len(data), 4, 1), int.from_bytes(data, "little")
    up = (bits + _every(len(data), 4, 0x7FFF) + (bits >> 16 & ones)).to_bytes(len(data) + 4, "little")
    halves = bytearray(len(data) // 2)
    halves[0::2], halves[1::2] = up[2 : len(data) : 4], up[3 : len(data) : 4]
    return bytes(halves)


def _checked(tensor: Tensor, name: str, kind: str | None) -> Iterator[bytes]:
    done = 0
    while done < tensor.size:
        data = os.pread(tensor.handle, min(CHUNK, tensor.size - done), tensor.offset + done)
        if not data or len(data) % FLOATS[tensor.kind][0]:
            raise Refused(f"{name[:100]} ends too early")
        if not finite(data, tensor.kind):
            raise Refused(f"{name[:100]} has values that are not finite")
        done += len(data)
        if kind in {None, tensor.kind}:
            yield data
        elif (tensor.kind, kind) == ("F32", "BF16"):
            data = rounded(data)
            if not finite(data, "BF16"):
                raise Refused(f"{name[:100]} has values that are too large")
            yield data
        else:
            raise Refused(f"{name[:100]} is {tensor.kind}, {kind} is wanted")


def _tensor(told: dict[str, object], handle: int, start: int) -> Tensor:
    kind, shape, place = str(told["dtype"]), told["shape"], told["data_offsets"]
    if kind not in FLOATS or not isinstance(shape, list) or len(shape) > 8 or not isinstance(place, list):
        raise ValueError(kind)
    begin, end = place
    if not all(type(n) is int and 0 <= n < 1 << 40 for n in (*shape, begin, end)):
        raise ValueError(shape)
    return Tensor(kind, tuple(shape), handle, start + begin, end - begin)


@functools.lru_cache(maxsize=16)
def _masks(size: int, kind: str) -> tuple[int, int, int]:
    """All exponent bits, the lowest ones and the signs of as many numbers as are in `size` bytes."""
    width, exponent = FLOATS[kind]
    return tuple(_every(size, width, bits) for bits in (exponent, exponent & -exponent, 1 << 8 * width - 1))  # type: ignore[return-value]


@functools.lru_cache(maxsize=16)
def _every(size: int, width: int, bits: int) -> int:
    """The same bits in every `width` bytes of `size`."""
    return int.from_bytes(bits.to_bytes(width, "little") * (size // width), "little")
