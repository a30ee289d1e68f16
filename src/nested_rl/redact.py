r"""Secrets, taken out of whatever is written: files of a run, logs, trackers, the report, what is printed.

A secret is known by its value (an environment variable whose name ends like one of a key, the password of a URL in there, and
what a part `know`s) or by its shape (a URL with a password, a bearer header, the keys of well-known services). SECURITY.md names every
place where this module is applied.

>>> text("POST https://me:hunter2@host/v1?api_key=abc Authorization: Bearer sk-proj-0123456789abcdef0123")
'POST https://[redacted]@host/v1?api_key=[redacted] Authorization: [redacted]'
"""

from __future__ import annotations

import functools
import html
import json
import logging
import os
import re
import traceback
from typing import Any, Final
from urllib.parse import quote

MARK: Final = "[redacted]"
SHORTEST: Final = 8
"""Shorter values are not looked for: they stand in ordinary text by chance."""

_WORD: Final = 16
"""Letters alone, and fewer than these, are taken for a word: `X_TOKEN=training` is no reason to strike out the word."""
_NAME = re.compile(r"(API_?KEY|(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT))S?$", re.IGNORECASE)
_FIELD = re.compile(
    r"^(.*_)?(api_?key|secret|secret_key|access_key|private_key|passw(or)?d|passphrase|authorization)$"
    r"|^((access|auth|api|bearer|hf|refresh)_)?token$",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"://[^/\s:@]{0,200}:([^/\s@]{1,500})@")
_BEFORE = r"(?<![A-Za-z0-9_+/-])"
_SHAPES: Final = tuple(
    (hints, re.compile(pattern))
    for hints, pattern in (
        (("@",), r"(?<=://)[^/\s:@\"'<>]{0,200}:[^/\s@\"'<>]{1,500}(?=@)"),
        (("=",), r"(?i)(?<=[?&;])((?:api_?|access_?|private_?)?(?:key|token|secret)|sig|signature|passw(?:or)?d)=[^&\s\"'<>]+"),
        (("uthorization", "UTHORIZATION"), r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?)(?!\[redacted)[A-Za-z]{3,10} [^\s\"',;<>]+"),
        (("earer ", "EARER "), r"(?i)(\bbearer )[A-Za-z0-9._~+/=-]{16,}"),
        (("sk-",), _BEFORE + r"sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"),
        (("tml-",), _BEFORE + r"tml-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"),
        (("hf_",), _BEFORE + r"hf_[A-Za-z0-9]{16,}"),
        (("rpa_",), _BEFORE + r"rpa_[A-Za-z0-9]{16,}"),
        (("gh", "github_pat_", "glpat-"), _BEFORE + r"(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,})"),
        (("AKIA", "ASIA"), _BEFORE + r"A[KS]IA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        (("AIza",), _BEFORE + r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9])"),
        (("xox",), _BEFORE + r"xox[abprs]-[A-Za-z0-9-]{10,}"),
        (("eyJ",), _BEFORE + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
        (("PRIVATE KEY",), r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{1,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"),
    )
)  # fmt: skip
"""A regular expression runs only over text that has one of its hints: looking for those is many times faster."""

_told: set[str] = set()


def know(value: str) -> None:
    """From now on this value is a secret, wherever it came from (a key under a name of one's own, the salt of a run)."""
    _told.add(value)


def known(text: str) -> str:
    """The text without secrets known by their value; what merely looks like one stays.

    For what an agent is told: it must not learn a key, but what it has written itself it may read back as it is.
    """
    for value in _values():
        if value in text:
            text = text.replace(value, MARK)
    return text


def text(text: str) -> str:
    """The text without secrets, known by value or by shape. Cut a text after this, never before: half a key is not found.

    >>> text("hf_abcdefghijklmnop and risk-free sk-learn")
    '[redacted] and risk-free sk-learn'
    """
    return _shaped(known(text))


def data(value: Any) -> Any:
    """Plain data (JSON) without secrets: in texts, in names, and whole texts under a name such as `api_key`.

    Numbers are left as they are. What holds no secret comes back as it is, not as a copy.

    >>> data({"api_key": "abc", "ids": [1, 2], "url": "http://u:pw@host"})
    {'api_key': '[redacted]', 'ids': [1, 2], 'url': 'http://[redacted]@host'}
    """
    return _walk(value, _values())


def holds(text: str) -> bool:
    """Whether a secret that is known by its value stands in the text."""
    return any(value in text for value in _values())


def logger(name: str) -> logging.Logger:
    """The logger of this name, whose records are clean before any handler gets them."""
    found = logging.getLogger(name)
    found.addFilter(FILTER)
    return found


class _Clean(logging.Filter):
    """Cleans records: message, traceback and stack. For loggers, and for handlers that other people's records reach."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:  # noqa: BLE001  wrong arguments: logging itself complains about them
            return True
        if (clean := text(said)) != said:
            record.msg, record.args = clean, None
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1])).removesuffix("\n")
            if (clean := text(trace)) != trace:
                record.exc_text, record.exc_info = clean, None
        if record.stack_info:
            record.stack_info = text(record.stack_info)
        return True


FILTER: Final = _Clean()


# ---------------------------------------------------------------- what is known


def _values() -> tuple[str, ...]:
    """Every known secret as it may be spelt, the longest first. The environment is compared anew: it may have changed."""
    # the plain dict inside os.environ: comparing two takes a microsecond, walking one through its codec a hundred
    inside, told = getattr(os.environ, "_data", None), frozenset(_told)
    if inside is None:
        return _found(told)
    if _last.get("told") != told or _last.get("environment") != inside:
        _last.update(told=told, environment=dict(inside), values=_found(told))
    values: tuple[str, ...] = _last["values"]
    return values


_last: Final[dict[str, Any]] = {}


def _found(told: frozenset[str]) -> tuple[str, ...]:
    found = set(told)
    for name, value in os.environ.items():
        if _NAME.search(name):
            found.add(value.strip())
        elif "@" in value and (password := _PASSWORD.search(value)):
            found.add(password.group(1))
    return _spelt(frozenset(found))


@functools.lru_cache(maxsize=16)
def _spelt(values: frozenset[str]) -> tuple[str, ...]:
    forms: set[str] = set()
    for value in values:
        if len(value) < SHORTEST or (value.isalpha() and len(value) < _WORD):
            continue
        escaped = json.dumps(value)[1:-1]
        forms |= {value, quote(value, safe=""), escaped, html.escape(value), html.escape(escaped)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


# ---------------------------------------------------------------- taking it out


def _shaped(text: str) -> str:
    for hints, pattern in _SHAPES:
        for hint in hints:
            if hint in text:
                text = pattern.sub(_marked, text)
                break
    return text


def _marked(found: re.Match[str]) -> str:
    """What was before the secret stays: `api_key=`, `Bearer `."""
    kept = found.group(1) if found.re.groups and found.group(1) else ""
    return f"{kept}={MARK}" if kept and found.group()[len(kept)] == "=" else f"{kept}{MARK}"


def _walk(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            if secret in value:
                value = value.replace(secret, MARK)
        return _shaped(value)
    if isinstance(value, dict):
        clean = {_name(key, secrets): _field(key, item, secrets) for key, item in value.items()}
        same = all(a is b and x is y for (a, x), (b, y) in zip(clean.items(), value.items(), strict=False))
        return value if same and len(clean) == len(value) else clean
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)):  # ids are many: no call for each
            return value
        items = [_walk(item, secrets) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


@functools.lru_cache(maxsize=4096)
def _named(key: str, secrets: tuple[str, ...]) -> str:
    clean: str = _walk(key, secrets)
    return clean


def _name(key: Any, secrets: tuple[str, ...]) -> Any:
    """The names of fields are few, and come again and again."""
    if type(key) is not str:
        return _walk(key, secrets)
    clean = _named(key, secrets)
    return key if clean == key else clean


@functools.lru_cache(maxsize=4096)
def _telling(key: str) -> bool:
    """Whether a field of this name holds a secret."""
    return _FIELD.match(key.replace("-", "_")) is not None


_NUMBERS: Final = frozenset({int, float, bool, type(None)})


def _field(key: Any, value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str) and value and isinstance(key, str) and _telling(key):
        return value if value == MARK else MARK
    return _walk(value, secrets)
