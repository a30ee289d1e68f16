"""Weights that were trained, brought from a machine and kept: every adapter, and of full fine-tunes the best few.

A folder of kept weights has one folder for each, named by its digest.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from nested_rl.errors import InfraFault, MachineLost
from nested_rl.interfaces import Machine
from nested_rl.model_files import ADAPTER, MODEL, digest_of, sha256

PART_BYTES: Final = 256 << 20
_PATIENCE_S: Final = 600.0
_CUT = 'tail -c "+$1" "$2" | head -c "$3" > "$4"'


async def fetch(machine: Machine, path: str, into: Path, *, digest: str) -> Path:
    """Copy the folder `path` of a machine (an `Ended.path`) to `into`/`digest`, unless it is there; all or nothing.

    Raises InfraFault when what arrives has another digest, MachineLost when it does not arrive.
    """
    target = into / digest
    if await asyncio.to_thread(target.is_dir):
        return target
    draft = into / f".{digest}.{secrets.token_hex(4)}"
    await asyncio.to_thread(draft.mkdir, parents=True)
    try:
        hashes = {}
        for name, size in (await _listed(machine, path)).items():
            hashes[name] = await _copied(machine, f"{path}/{name}", size, draft / name)
        if digest_of(hashes) != digest:
            raise InfraFault(f"{machine.id}: {path} is not what was trained; its digest is {digest_of(hashes)[:16]}")
        await asyncio.to_thread(draft.rename, target)
    except (OSError, TimeoutError, ValueError) as error:
        raise MachineLost(f"{machine.id}: {path} cannot be fetched: {error}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    return target


async def discard(machine: Machine, path: str) -> None:
    """Remove a folder of weights from a machine, to have room for the next."""
    done = await machine.run(["rm", "-rf", "--", path], timeout_s=_PATIENCE_S)
    if done.returncode != 0:
        raise InfraFault(f"{machine.id}: {path} cannot be removed: {done.stderr.strip()[:300]}")


def retain(folder: Path, best: Collection[str]) -> tuple[str, ...]:
    """Remove full fine-tunes whose digest is not among `best`; adapters are small, and stay. The digests that went.

    Every folder that is not named here is lost, so name all that any journal still points to.
    """
    gone = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (place / MODEL).is_file() and place.name not in best:
            shutil.rmtree(place)
            gone.append(place.name)
    return tuple(gone)


async def _listed(machine: Machine, path: str) -> dict[str, int]:
    """The plain files of a folder, with their sizes."""
    told = await machine.run(
        ["find", path, "-maxdepth", "1", "-type", "f", "-printf", "%s %f\\n"], timeout_s=_PATIENCE_S
    )
    files = {name: int(size) for size, _, name in (line.partition(" ") for line in told.stdout.splitlines())}
    if told.returncode != 0 or not files.keys() & {MODEL, ADAPTER}:
        raise FileNotFoundError(f"no weights there {told.stderr.strip()[:200]}")
    return files


async def _copied(machine: Machine, path: str, size: int, target: Path) -> str:
    """Copy a file in parts that any machine can hand over; the sha256 of what is here now."""
    part = f"{path.rpartition('/')[0]}.part"
    with target.open("wb") as file:
        for start in range(0, size, PART_BYTES):
            argv = ["sh", "-c", _CUT, "sh", str(start + 1), path, str(PART_BYTES), part]
            if (await machine.run(argv, timeout_s=_PATIENCE_S)).returncode != 0:
                raise OSError(f"{path} cannot be read")
            data = await machine.get(part)
            await asyncio.to_thread(file.write, data)
    await machine.run(["rm", "-f", "--", part], timeout_s=_PATIENCE_S)
    return await asyncio.to_thread(sha256, target)
