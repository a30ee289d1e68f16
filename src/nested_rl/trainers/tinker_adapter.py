"""An adapter's files from the signed addresses that Tinker gives for them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import httpx

from nested_rl.errors import RunDirError, SettingsError, TrainerError

NEEDED = ("adapter_config.json", "adapter_model.safetensors")


async def download(urls: Mapping[str, str], path: Path, *, timeout_s: float = 600.0) -> None:
    """Write every file below `path`, all or nothing. The addresses are secrets: no error tells them.

    Raises SettingsError when `path` exists, TrainerError when a file cannot be had or the folder is no PEFT adapter.
    """
    if await asyncio.to_thread(path.exists):
        raise SettingsError(f"{path} exists already; delete it or choose another place")
    missing = [name for name in NEEDED if name not in urls]
    if missing:
        raise TrainerError(f"what Tinker exported is no PEFT adapter: {', '.join(missing)} is missing")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        async with httpx.AsyncClient(timeout=timeout_s, follow_redirects=True) as client:
            for name, url in urls.items():
                await _file(client, name, url, draft)
        await asyncio.to_thread(draft.rename, path)
    except OSError as error:
        raise RunDirError(f"{path}: {error.strerror or error}") from error
    finally:
        await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)


async def _file(client: httpx.AsyncClient, name: str, url: str, folder: Path) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or not place.parts:
        raise TrainerError(f"what Tinker exported has a file with a name that leads elsewhere: {name!r}")
    target = folder / place
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        async with client.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise TrainerError(
                    f"{name} cannot be downloaded: status {answer.status_code} (the address may have expired)"
                )
            with target.open("wb") as file:
                async for chunk in answer.aiter_bytes():
                    file.write(chunk)
    except httpx.HTTPError as error:
        raise TrainerError(f"{name} cannot be downloaded: {type(error).__name__}") from None
