"""Which host key is the pod's own, learnt from whoever answers at its address, without trusting the line.

Each pod is told a nonce that only its owner can make again. When it has made its host key, it shows the key in the first line that its
sshd says to anybody, with an HMAC of the key under the nonce. Somebody in between can put another key there, but no HMAC that fits;
somebody who repeats a whole line has not the key that it names, so the login, which is pinned to it, fails. What leaks to others is a
public key and a hash. The nonce travels to the pod in its environment: whoever can read that is the provider, or has the account.

A log of the pod would do too, but not every provider shows one, and reading it costs a request a pod.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from typing import Final

from nested_rl.errors import MachineLost

_GREETING: Final = re.compile(rb"SSH-2\.0-.* nested-rl=([A-Za-z0-9+/]+=*):([0-9a-f]{64})\s*$")
_LINES: Final = 10
"""An SSH server may say a few lines before its greeting."""


def nonce(secret: bytes, name: str) -> str:
    """The pod's own, and the same for a controller that has taken over."""
    return hmac.new(secret, b"host key of " + name.encode(), hashlib.sha256).hexdigest()


def proof(nonce: str, host_key: str) -> str:
    """What a pod with that nonce says of its host key.

    >>> proof("n", "ssh-ed25519 AAAA")[:8]
    'a6fb852f'
    """
    return hmac.new(nonce.encode(), host_key.encode(), hashlib.sha256).hexdigest()


async def proven_host_key(address: str, port: int, nonce: str) -> str:
    """The host key of the pod at that address. Raises MachineLost, to be asked again, or OSError while nobody answers."""
    reader, writer = await asyncio.open_connection(address, port)
    try:
        greeting = b""
        for _ in range(_LINES):
            greeting = await reader.readline()
            if not greeting or greeting.startswith(b"SSH-"):
                break
    except ValueError as error:
        raise MachineLost(f"{address}:{port} is no SSH server: {error}") from error
    finally:
        writer.close()
    return believed(greeting, nonce, where=f"{address}:{port}")


def believed(greeting: bytes, nonce: str, *, where: str) -> str:
    """The host key in a greeting, if who says it knows the nonce."""
    told = _GREETING.match(greeting)
    if told is None:
        raise MachineLost(f"{where} does not tell its host key: it says {greeting[:80]!r}")
    host_key = f"ssh-ed25519 {told[1].decode()}"
    if not hmac.compare_digest(proof(nonce, host_key), told[2].decode()):
        raise MachineLost(f"{where} has not the nonce of this pod: its host key is not believed")
    return host_key
