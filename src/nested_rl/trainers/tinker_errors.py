"""What goes wrong with Tinker, in words that say what to do. Nothing is tried again here: the SDK does that itself."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nested_rl.errors import NestedRLError, SettingsError, TrainerError

KEY: Final = "TINKER_API_KEY"
NO_KEY: Final = "tml-no-key"
"""What a server of one's own is sent: the SDK refuses to send nothing."""

_STORED: Final = Path.home() / ".tinker" / "credentials.json"
_STATUS = re.compile(r"status[ =:(]*(\d{3})\b")
_LONGEST: Final = 300

_ADVICE: Final = {
    401: "the key is refused; set {key} to a valid one",
    402: "the account has no credit, or no billing is set up; top it up and run again to resume",
    403: "the key may not do this; use one of the right organisation or project",
    404: "the server does not have it (a checkpoint may have reached the end of its lifetime)",
    429: "too many requests, also after the SDK's own retries; run fewer episodes at once, or ask for a higher limit",
}


def api_key(key_env: str, *, hosted: bool) -> str | None:
    """The key to hand to the SDK; None leaves it to the SDK's own sources. Raises SettingsError when there is none.

    A server of one's own is never sent the hosted service's key: it gets `key_env`'s, or a placeholder.
    """
    if not hosted and not key_env:
        return NO_KEY
    name = key_env or KEY
    key = os.environ.get(name, "").strip()
    if not key and name == KEY and (os.environ.get("TINKER_CREDENTIAL_CMD") or _STORED.is_file()):
        return None
    if not key:
        raise SettingsError(f"Tinker needs a key: set the environment variable {name} (it begins with tml-)")
    if not key.startswith(("tml-", "eyJ")):
        raise SettingsError(f"the environment variable {name} does not hold a Tinker key: it must begin with tml-")
    return key


@contextlib.contextmanager
def plainly(doing: str, *, key: str = KEY) -> Iterator[None]:
    """What the SDK raises inside comes out as an error of this package that says what was being done."""
    try:
        yield
    except NestedRLError:
        raise
    except Exception as error:  # the SDK raises its own errors, but also ValueError, RuntimeError and AssertionError
        raise explained(error, doing, key=key) from error


def explained(error: BaseException, doing: str, *, key: str = KEY) -> NestedRLError:
    """SettingsError where the user has to change something, else TrainerError."""
    status = status_of(error)
    told = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
    if status in _ADVICE:
        kind = SettingsError if status in (401, 403) else TrainerError
        return kind(f"Tinker, {doing}: {_ADVICE[status].format(key=key or 'key_env')} ({status}: {told})")
    if status is not None and status >= 500:
        return TrainerError(f"Tinker, {doing}: the server failed, run again to resume ({status}: {told})")
    if type(error).__name__ in ("APIConnectionError", "APITimeoutError", "TimeoutError"):
        return TrainerError(f"Tinker, {doing}: the server cannot be reached, run again to resume ({told})")
    return TrainerError(f"Tinker, {doing}: {type(error).__name__}: {told}")


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, also where the SDK only tells it in words or in the cause.

    >>> status_of(ValueError("Error retrieving result: no credit with status 402 for self.request_id='7'"))
    402
    """
    while error is not None:
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return status
        found = _STATUS.search(str(error))
        if found:
            return int(found[1])
        error = error.__cause__
    return None
