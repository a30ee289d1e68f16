"""How numbers are spoken, in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=*#"


def number(value: float | None, digits: int = 2) -> str:
    """A plain number; a dash for what is not known.

    >>> number(0.6149), number(None), number(float("nan"))
    ('0.61', '–', '–')
    >>> number(-0.001)
    '0.00'
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:.{digits}f}"
    return text if float(text) else text.removeprefix("-")


def percent(value: float | None) -> str:
    """A share in [0, 1] as per cent.

    >>> percent(0.943)
    '94 %'
    """
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.0f} %"


def duration(seconds: float | None) -> str:
    """A length of time in the two units that matter.

    >>> duration(8.4), duration(92), duration(7260), duration(183_600)
    ('8 s', '1 min 32 s', '2 h 1 min', '2 d 3 h')
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    for size, unit, lower, lower_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // lower
            return f"{whole // size} {unit} {rest} {lower_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def seconds(value: float | None) -> str:
    """A length of time as `duration`, with a decimal where it is short.

    >>> seconds(0.42), seconds(92)
    ('0.4 s', '1 min 32 s')
    """
    return duration(value) if value is None or not value < 10 else f"{value:.1f} s"


def money(usd: float | None) -> str:
    """Dollars; small amounts keep two significant digits.

    >>> money(0), money(0.0041), money(12.5), money(1234.5)
    ('$0', '$0.0041', '$12.50', '$1,234.50')
    """
    if usd is None or not math.isfinite(usd):
        return "–"
    if usd == 0:
        return "$0"
    if abs(usd) < 0.1:
        return f"${usd:.2g}"
    return f"${usd:,.2f}"


def count(n: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "job"), count(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def sparkline(
    values: Sequence[float], *, low: float = 0.0, high: float = 1.0, width: int = 40, ascii_only: bool = False
) -> str:
    """A row of bars between `low` and `high`; the newest `width` values; a space for what is not finite.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    bars = _ASCII_BARS if ascii_only else _BARS
    span = (high - low) or 1.0
    return "".join(
        bars[round(min(1.0, max(0.0, (v - low) / span)) * (len(bars) - 1))] if math.isfinite(v) else " "
        for v in values[-width:]
    )
