"""What the sections of docs/performance.md share: what one is, tables, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

Results = Mapping[str, Any]


@frozen(kw_only=True)
class Section:
    """One section. `source` is its file in results/; `command` makes that file."""

    source: str
    title: str
    command: str
    what: str
    tables: Callable[[Results], Sequence[str]]
    verdict: Callable[[Results], str] = lambda _: ""
    limit: str | Callable[[Results], str] = ""


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def judged(what: str, value: float, target: float, *, least: bool, unit: str = "") -> str:
    """Target and measured value in one sentence."""
    met = value >= target if least else value <= target
    bound = "at least" if least else "at most"
    return f"{what}: {bound} {target:g}{unit} wanted, {value:.3g}{unit} measured, {'met' if met else '**not met**'}."


def listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


def span(values: Iterable[float], form: str = ".0%") -> str:
    """From the least to the most."""
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}"
