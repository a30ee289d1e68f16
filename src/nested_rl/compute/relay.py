"""A local port whose connections are carried elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable


@contextlib.asynccontextmanager
async def relayed(carry: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A port of this computer; `carry` has each connection to it, until it ends or the `async with` does."""
    carried: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carried.add(task)
        try:
            await carry(reader, writer)
        finally:
            carried.discard(task)
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(carried):
            task.cancel()
        await asyncio.gather(*carried, return_exceptions=True)
