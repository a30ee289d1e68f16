"""One OpenAI-compatible server over HTTP: the key, the retries, the deadlines, and errors that say what to do.

Sampling has no side effects, so what may pass (429, 5xx, a broken or stalled connection) is tried again. The key is read from
the environment for every request and kept nowhere, unless the server is our own and was started with a key made up for it; it is
cut out of everything that a server says. Proxies are for other computers: what is asked on this one does not leave it. Of an
answer no more is read than what was asked for could be.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import difflib
import email.utils
import json
import os
import random
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final

import httpx
from attrs import define, field
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from nested_rl import redact
from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import NestedRLError, SettingsError
from nested_rl.types import JSON

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
log = redact.logger(__name__)

_LONGEST_WAIT_S: Final = 60.0
_LEAST_WAIT_S: Final = 1.0
"""A server that asks for less is not believed."""
_ROOM_BYTES: Final = 4 * 2**20
"""What an answer may hold besides the tokens that were asked for."""
_BYTES_A_TOKEN: Final = 256
"""Of a sampled token in JSON, more than any has: the longest are rows of blanks, and escapes make letters six times as long."""
_SHOWN: Final = 8
_FULL = re.compile(r"context_length_exceeded|maximum context length|context window", re.IGNORECASE)
_NO_MODEL = re.compile(r"model_not_found|not a valid model|model\b.{0,120}\b(does not exist|not found)", re.IGNORECASE)


class EndpointError(NestedRLError):
    """The server does not do what it is asked."""


class MissingKey(EndpointError, SettingsError):
    """The environment holds no usable key."""


class KeyRefused(EndpointError):
    """401 or 403: the key is wrong, or may not use this model."""


class NoCredit(EndpointError):
    """402, or 429 for a used-up quota: the account has to be topped up."""


class NoSuchModel(EndpointError):
    """404: the server has no such model, or there is no such server path."""


class RequestRefused(EndpointError):
    """Another refusal that asking again would not change."""


class ContextFull(RequestRefused):
    """The conversation is longer than the model's context."""


class Unavailable(EndpointError):
    """No answer: 5xx, a broken connection or a stalled response, also after all retries."""

    wait_s: float | None = None
    """How long the server asks to wait."""


class Unreachable(Unavailable):
    """Nobody listens at this address."""


class RateLimited(Unavailable):
    """429, also after all retries."""


@define(eq=False)
class Endpoint:
    """A server. `attempt_s` bounds one try, `timeout_s` a request with all its retries and waits. `key` goes before `key_env`."""

    base_url: str
    key_env: str
    key: str = field(default="", kw_only=True, repr=False)
    timeout_s: float = field(kw_only=True)
    attempt_s: float = field(kw_only=True)
    concurrency: int = field(kw_only=True)
    clock: Clock = field(factory=SystemClock, kw_only=True)
    _client: httpx.AsyncClient | None = field(default=None, init=False)
    _slots: asyncio.Semaphore = field(init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        url = httpx.URL(self.base_url) if self.base_url.isprintable() else httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise SettingsError("base_url must look like https://HOST/v1, without a query")
        if url.userinfo:
            raise SettingsError("base_url must not hold a name or password; keys come from the environment (key_env)")
        self.base_url = self.base_url.rstrip("/")
        self._key()

    async def ask(self, body: Mapping[str, JSON], *, tokens: int = 32_768, patient: bool = True) -> Mapping[str, JSON]:
        """The server's answer to one chat-completions request. Raises an EndpointError.

        `tokens` is how many are asked for, which bounds how much is read. Unless `patient`, an address where nobody listens is
        told at once: nothing was started yet, so the address may be wrong. Other trouble is waited out, and said once.
        """
        client = await self._open()
        async with self._slots:  # held while waiting too: a server that says 429 gets fewer requests at once
            started_s = self.clock.monotonic()

            def out_of_time(state: RetryCallState) -> bool:
                return self.clock.monotonic() - started_s + state.upcoming_sleep >= self.timeout_s

            def may_pass(error: BaseException) -> bool:
                return isinstance(error, Unavailable) and (patient or not isinstance(error, Unreachable))

            def say(state: RetryCallState) -> None:
                if not patient and state.attempt_number == 1 and state.outcome is not None:
                    log.warning("%s; trying again, for up to %g s", state.outcome.exception(), self.timeout_s)

            retrying = AsyncRetrying(
                sleep=self.clock.sleep,
                before_sleep=say,
                wait=_pause,
                stop=out_of_time,
                retry=retry_if_exception(may_pass),
                reraise=True,
            )
            try:
                return await retrying(self._once, client, body, tokens)
            except Unavailable as error:
                if not may_pass(error):
                    raise
                tries = retrying.statistics.get("attempt_number", 1)
                raise type(error)(f"{error}; tried {tries} times within timeout_s={self.timeout_s:g}") from None

    async def close(self) -> None:
        """Let go of the connections."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    async def _open(self) -> httpx.AsyncClient:
        """The client of this event loop: connections of one loop are of no use in another."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # Reads are bounded by the whole attempt; waiting for a place is bounded by `_slots`.
            timeout = httpx.Timeout(self.attempt_s, connect=min(10.0, self.attempt_s), pool=None)
            limits = httpx.Limits(max_connections=self.concurrency + 1)
            elsewhere = httpx.URL(self.base_url).host not in LOOPBACK
            self._client = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=elsewhere)
            self._slots = asyncio.Semaphore(self.concurrency)
            self._loop = loop
        return self._client

    async def _once(self, client: httpx.AsyncClient, body: Mapping[str, JSON], tokens: int) -> Mapping[str, JSON]:
        response = await self._send(client, "POST", "/chat/completions", body, tokens=tokens)
        status, said = response.status_code, _parsed(response)
        fault = said.get("error") if isinstance(said, dict) else None
        if status == 200 and isinstance(said, dict) and said.get("choices"):
            return said
        if status == 200:  # some gateways put the fault of the provider behind them into an answer that is fine
            code = fault.get("code") if isinstance(fault, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 502
        raise await self._refusal(client, status, response, model=str(body.get("model", "")))

    async def _send(
        self,
        client: httpx.AsyncClient,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        *,
        tokens: int = 0,
    ) -> httpx.Response:
        key = self._key()
        # uncompressed: a few packed kilobytes could become any number of megabytes before they can be counted
        headers = {"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})}
        try:
            # Real time, not the clock's: this bounds a real connection, and also an answer that only trickles in.
            async with asyncio.timeout(self.attempt_s):
                async with client.stream(method, self.base_url + path, json=body, headers=headers) as answer:
                    return await self._read(answer, _ROOM_BYTES + _BYTES_A_TOKEN * tokens)
        except TimeoutError:
            raise Unavailable(f"{self.base_url}: no whole answer within attempt_s={self.attempt_s:g}") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            told = self._clean(f"{type(error).__name__}: {error}".removesuffix(": "))
            raise Unreachable(f"{self.base_url}: {told}; is the server running, and base_url right?") from None
        except httpx.RequestError as error:
            told = self._clean(f"{type(error).__name__}: {error}".removesuffix(": "))
            raise Unavailable(f"{self.base_url}: {told}") from None

    async def _read(self, answer: httpx.Response, most_bytes: int) -> httpx.Response:
        """The whole of an answer that is not longer than it could be."""
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            raise Unavailable(f"{self.base_url}: the answer is compressed, which it was not asked to be")
        read = bytearray()
        async for part in _parts(answer):
            read += part
            if len(read) > most_bytes:
                mib = most_bytes / 2**20
                raise Unavailable(f"{self.base_url}: the answer has more than {mib:.1f} MiB, which was not asked for")
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(read))

    async def _refusal(
        self, client: httpx.AsyncClient, status: int, response: httpx.Response, *, model: str
    ) -> EndpointError:
        """The error for an answer that is none."""
        text = self._clean(response.text)
        told = f"{self.base_url}: {status}{_reason(text)}"
        if status in (401, 403):
            where = f"the key in {self.key_env}" if self.key_env else "a request without a key"
            return KeyRefused(f"{told}; the server refuses {where}")
        if status == 402 or (status == 429 and "insufficient_quota" in text):
            return NoCredit(f"{told}; top up the account, or use another model or server")
        if status == 404 or (status == 400 and _NO_MODEL.search(text)):
            return NoSuchModel(f"{told}; {await self._instead(client, model)}")
        if status == 429:
            limited = RateLimited(
                f"{told}; ask less at once (concurrency={self.concurrency}) or wait longer (timeout_s)"
            )
            limited.wait_s = _retry_after_s(response.headers.get("retry-after", ""), now_s=self.clock.now())
            return limited
        if status in (408, 409) or status >= 500:
            down = Unavailable(told)
            down.wait_s = _retry_after_s(response.headers.get("retry-after", ""), now_s=self.clock.now())
            return down
        if status in (400, 413, 422) and _FULL.search(text):
            return ContextFull(f"{told}; set context_tokens to the model's context")
        return RequestRefused(told)

    async def _instead(self, client: httpx.AsyncClient, model: str) -> str:
        """Which models there are, the nearest first, if the server says so."""
        try:
            said = _parsed(await self._send(client, "GET", "/models"))
        except EndpointError:
            said = None
        listed = said.get("data") if isinstance(said, dict) else None
        rows = listed if isinstance(listed, list) else []
        there = [str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row]
        if not there:
            return f"no model {model!r}, or base_url is not the API's (it mostly ends in /v1)"
        near = difflib.get_close_matches(model, there, n=_SHOWN, cutoff=0.4)
        shown = (near + [name for name in sorted(there) if name not in near])[:_SHOWN]
        return f"no model {model!r}; there are {', '.join(shown)}{' …' if len(there) > _SHOWN else ''}"

    def _key(self) -> str:
        """The key, from the environment. A server on this computer may need none."""
        if self.key:
            redact.know(self.key)
            return self.key
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key and httpx.URL(self.base_url).host not in LOOPBACK:
            raise MissingKey(
                f"{self.base_url} needs a key: set the environment variable {self.key_env}, or say key_env=... "
                '("" for a server without keys)'
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise MissingKey(
                f"the environment variable {self.key_env} does not hold a key: it has spaces or odd characters"
            )
        redact.know(key)
        return key

    def _clean(self, text: str) -> str:
        key = self._key()
        return text.replace(key, "[key]") if key else text


def _pause(state: RetryCallState) -> float:
    """As long as the server asks for, else longer each time, with jitter; so too if it asks for next to none."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait_s if isinstance(error, Unavailable) else None
    own = min(_LONGEST_WAIT_S, float(2 ** min(state.attempt_number - 1, 10))) * random.uniform(0.5, 1.0)
    return own if asked is None or asked < _LEAST_WAIT_S else asked


def _retry_after_s(value: str, *, now_s: float) -> float | None:
    """Seconds in a Retry-After header: a number or a date.

    >>> _retry_after_s("7", now_s=0.0), _retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", now_s=20.0)
    (7.0, 40.0)
    """
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value.strip()):
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, when.replace(tzinfo=when.tzinfo or dt.UTC).timestamp() - now_s)


def _parsed(response: httpx.Response) -> JSON:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


async def _parts(answer: httpx.Response) -> AsyncIterator[bytes]:
    """As they come; of a transport that had them all at once, all at once."""
    if answer.is_stream_consumed:
        yield answer.content
        return
    async for part in answer.aiter_raw():
        yield part


def _reason(text: str) -> str:
    """The server's own words, short."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    fault = said.get("error", said) if isinstance(said, dict) else None
    words = fault.get("message") if isinstance(fault, dict) else fault
    told = " ".join(str(words or text).split())[:300]
    return f" ({told})" if told else ""
