"""Curves as inline SVG. Colours are CSS variables of the page, so that light and dark need one picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from nested_rl.report.digest import Point

_SERIES = tuple(f"#c0000{n}" for n in range(1, 7))
_INK, _MUTED, _GRID, _PAPER = "#c000a1", "#c000a2", "#c000a3", "#c000a4"
_VARIABLES = {
    **{colour: f"var(--s{n})" for n, colour in enumerate(_SERIES, 1)},
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--grid)",
    _PAPER: "var(--paper)",
}
_STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1)), (0, (1, 1)))
_WIDTH_IN, _HEIGHT_IN = 4.7, 2.75
_MOST_POINTS = 400
"""More than a reader can tell apart; keeps the page small whatever the length of the run."""


@frozen(kw_only=True)
class Series:
    """One line: a name and a value for each x (NaN leaves a gap). `low` and `high` make a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    points: bool = False


@frozen(kw_only=True)
class Chart:
    """A picture, what it says in words, and its key: (name, css class) pairs."""

    svg: str
    alt: str
    key: tuple[tuple[str, str], ...] = ()
    empty: bool = False
    """Whether nothing is drawn in it."""


def lines(
    name: str,
    series: Sequence[Series],
    *,
    alt: str,
    y_max: float | None = 1.0,
    x_max: float | None = None,
    x_label: str = "step",
) -> Chart:
    """Lines over steps. `name` must be unique on the page; `y_max=None` fits the axis to the data, from 0."""
    figure, axes = _figure()
    for number, one in enumerate(series):
        x, y, low, high = _thinned(one)
        colour, style = _SERIES[number % len(_SERIES)], _STYLES[number % len(_STYLES)]
        if one.points:
            errors = [[v - lo for v, lo in zip(y, low, strict=True)], [hi - v for v, hi in zip(y, high, strict=True)]]
            axes.errorbar(x, y, yerr=errors if low else None, fmt="D", ms=3.5, lw=0.8, color=colour, zorder=4)
            continue
        axes.plot(x, y, color=colour, linestyle=style, lw=1.6, marker="o" if len(x) == 1 else None, ms=4, zorder=3)
        if low:
            axes.fill_between(x, low, high, color=colour, alpha=0.15, lw=0, zorder=2)
    _limits(axes, series, y_max=y_max, x_max=x_max)
    axes.set_xlabel(x_label, color=_MUTED)
    key = tuple(
        (one.name, f"s{number % len(_SERIES) + 1} k{number % len(_STYLES)}{' point' if one.points else ''}")
        for number, one in enumerate(series)
    )
    empty = not any(math.isfinite(v) for one in series for v in one.y)
    return Chart(svg=_svg(figure, name, alt), alt=alt, key=key, empty=empty)


def scatter(name: str, points: Sequence[Point], *, bases: Sequence[str], alt: str) -> Chart:
    """Score after training over the same base's untrained score; dotted: the best untrained base, which is what counts."""
    figure, axes = _figure()
    axes.plot([0, 1], [0, 1], color=_MUTED, lw=0.8, linestyle="--", zorder=1)
    for best in sorted({p.best for p in points})[:3]:
        axes.axhline(best, color=_MUTED, lw=1.2, linestyle=":", zorder=1)
    shown = points[:: max(1, math.ceil(len(points) / _MOST_POINTS))]
    for number, base in enumerate(bases):
        chosen = [p for p in shown if p.base == base]
        marker = ("o", "^", "s", "D", "v", "P")[number % 6]
        # Jobs of one task and base share their x: a fixed sideways shift lets them be seen apart.
        x = [p.pre + 0.03 * ((i * 7) % 11 - 5) / 5 for i, p in enumerate(chosen)]
        colour = _SERIES[number % len(_SERIES)]
        axes.scatter(x, [p.post for p in chosen], s=13, marker=marker, color=colour, alpha=0.6, lw=0, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("base, untrained", color=_MUTED)
    axes.set_ylabel("after training", color=_MUTED)
    key = tuple((base, f"s{number % len(_SERIES) + 1} dot{number % 6}") for number, base in enumerate(bases))
    return Chart(svg=_svg(figure, name, alt), alt=alt, key=key)


def spark(values: Sequence[float], *, alt: str, width: int = 160, height: int = 28) -> str:
    """A line as small as a word."""
    found = [v for v in values if math.isfinite(v)]
    if len(found) < 2:
        return ""
    low, high = min(found), max(found)
    span = (high - low) or 1.0
    step = max(1, len(found) // 200)
    thin = found[::step]
    places = " ".join(
        f"{2 + (width - 4) * i / (len(thin) - 1):.1f},{height - 3 - (height - 6) * (v - low) / span:.1f}"
        for i, v in enumerate(thin)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f'<title>{_escaped(alt)}</title><polyline points="{places}"/></svg>'
    )


def _figure() -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN))
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    axes.grid(color=_GRID, lw=0.6, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GRID)
    axes.tick_params(colors=_MUTED, length=0, labelsize=9.5)
    return figure, axes


def _limits(axes: Any, series: Sequence[Series], *, y_max: float | None, x_max: float | None) -> None:
    from matplotlib.ticker import MaxNLocator

    finite = [v for one in series for v in (*one.y, *one.high) if math.isfinite(v)]
    top = y_max if y_max is not None else 1.08 * max(finite, default=1.0) or 1.0
    axes.set_ylim(-0.02 * top, 1.02 * top)  # a line at 0 or 1 is seen whole
    last = x_max or max((v for one in series for v in one.x), default=1.0)
    axes.set_xlim(-0.02 * max(2.0, last), max(2.0, last) * 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _thinned(one: Series) -> tuple[list[float], list[float], list[float], list[float]]:
    """At most `_MOST_POINTS` of a long line, the last one among them."""
    stride = max(1, math.ceil(len(one.x) / _MOST_POINTS))
    first = (len(one.x) - 1) % stride if one.x else 0
    x, y, low, high = (list(values[first::stride]) for values in (one.x, one.y, one.low, one.high))
    return x, y, low, high


def _fit(figure: Any) -> None:
    """Margins from the length of the labels: ten times faster than matplotlib's own layout, and as good for one panel."""
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    places = [place for place in axes.yaxis.get_major_locator().tick_values(low, high) if low <= place <= high]
    longest = max(map(len, axes.yaxis.get_major_formatter().format_ticks(places)), default=1)
    left = 8 + 5.8 * longest + (14 if axes.get_ylabel() else 0)
    width, height = 72 * _WIDTH_IN, 72 * _HEIGHT_IN
    figure.subplots_adjust(left=left / width, right=1 - 9 / width, bottom=34 / height, top=1 - 5 / height)


def _svg(figure: Any, name: str, alt: str) -> str:
    import matplotlib as mpl

    _fit(figure)
    text = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10.0, "axes.unicode_minus": True}
    with mpl.rc_context(settings):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    # Several pictures share one page: every id is made its own, or clip paths and markers would mix.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", svg)
    svg = re.sub(r"font:[^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"#c000(?:0[1-6]|a[1-4])", lambda found: _VARIABLES[found.group()], svg)
    head, box = svg[: svg.index(">") + 1], re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = f'<svg {box.group()} role="img" aria-label="{_escaped(alt)}">' + svg[len(head) :]
    svg = re.sub(r"\n\s*", "\n", svg)
    return svg.strip()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
