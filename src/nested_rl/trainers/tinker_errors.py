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
COMMAND: Final = "TINKER_CREDENTIAL_CMD"
ADDRESS: Final = "TINKER_BASE_URL"
NO_KEY: Final = "tml-no-key"
"""What a server of one's own is sent: the SDK refuses to send nothing."""

_STATUS = re.compile(r"status[ =:(]*(\d{3})\b")
_LONGEST: Final = 300

_ADVICE: Final = {
    401: "{key}",
    402: "the account has no credit, or no billing is set up; top it up and run again to resume",
    403: "the key may not do this; use one of the right organisation or project",
    404: "{missing}",
    429: "too many requests, also after the SDK's own retries; run fewer episodes at once, or ask for a higher limit",
}


_MISSING: Final = "the server does not have it (what was saved may have reached the end of its lifetime)"


def _stored() -> Path:
    return Path.home() / ".tinker" / "credentials.json"


def api_key(key_env: str, *, base_url: str | None) -> str | None:
    """The key to hand to the SDK; None leaves it to the SDK's own sources. Raises SettingsError when there is none.

    A server of one's own is never sent the hosted service's credential: it gets `key_env`'s, or a placeholder. The SDK would run
    TINKER_CREDENTIAL_CMD for any server that asks for it, whatever key it was given, so the two are not used together.
    """
    if base_url is None and (elsewhere := os.environ.get(ADDRESS)):
        raise SettingsError(
            f"the environment variable {ADDRESS} sends the hosted service's key to {elsewhere}; say "
            f"TinkerTrainer(base_url=…, key_env=…) instead, and unset the variable"
        )
    if base_url is not None and os.environ.get(COMMAND):
        raise SettingsError(
            f"the environment variable {COMMAND} is set: if {base_url} asks for it, the Tinker client runs that command and sends "
            f"what it prints there; unset it for this run (env -u {COMMAND} …) and name the server's own key with key_env"
        )
    if base_url is not None and not key_env:
        return NO_KEY
    name = key_env or KEY
    key = os.environ.get(name, "").strip()
    if not key and base_url is None and name == KEY and (os.environ.get(COMMAND) or _stored().is_file()):
        return None
    if not key:
        raise SettingsError(f"Tinker needs a key: set the environment variable {name} (it begins with tml-)")
    if not key.startswith(("tml-", "eyJ")):
        raise SettingsError(f"the environment variable {name} does not hold a Tinker key: it must begin with tml-")
    return key


@contextlib.contextmanager
def plainly(doing: str, *, key: str | None = None, missing: str = _MISSING) -> Iterator[None]:
    """What the SDK raises inside comes out as an error of this package that says what was being done.

    `key` is the variable that holds the key, "" for a server that is sent none, None if it is not known here; `missing` is what
    to say of a 404.
    """
    try:
        yield
    except NestedRLError:
        raise
    except Exception as error:  # the SDK raises its own errors, but also ValueError, RuntimeError and AssertionError
        raise explained(error, doing, key=key, missing=missing) from error


def explained(error: BaseException, doing: str, *, key: str | None = None, missing: str = _MISSING) -> NestedRLError:
    """SettingsError where the user has to change something, else TrainerError."""
    status, said = _behind(error)
    told = " ".join(str(said).split())[:_LONGEST] or type(said).__name__
    if status in _ADVICE:
        kind = SettingsError if status in (401, 403) else TrainerError
        advice = _ADVICE[status].format(key=_refused(key), missing=missing)
        return kind(f"Tinker, {doing}: {advice} ({status}: {told})")
    if status is not None and status >= 500:
        return TrainerError(f"Tinker, {doing}: the server failed, run again to resume ({status}: {told})")
    if type(error).__name__ in ("APIConnectionError", "APITimeoutError", "TimeoutError"):
        return TrainerError(f"Tinker, {doing}: the server cannot be reached, run again to resume ({told})")
    return TrainerError(f"Tinker, {doing}: {type(error).__name__}: {told}")


def _refused(key: str | None) -> str:
    if key is None:
        return f"the key is refused; set {KEY}, or with base_url the variable that key_env names, to a valid one"
    if not key:
        return "the server wants a key; put it into an environment variable and name that with key_env=…"
    return f"the key is refused; set {key} to a valid one"


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status behind an error, also where the SDK only tells it in words or in what led to the error.

    >>> status_of(ValueError("Error retrieving result: no credit with status 402 for self.request_id='7'"))
    402
    """
    return _behind(error)[0]


def _behind(error: BaseException | None) -> tuple[int | None, BaseException | None]:
    """The HTTP status behind an error, and the error that says it; without one, the error itself."""
    last = error
    while last is not None:
        status = getattr(last, "status_code", None)
        if isinstance(status, int):
            return status, last
        found = _STATUS.search(str(last))
        if found:
            return int(found[1]), last
        # the context too: the SDK's own handling of a refusal can fail, and that error has no cause
        last = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
    return None, error
