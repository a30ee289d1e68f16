"""One episode up close: what the agent wrote, what it was told, what came of it. Agent text leaves here inert."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen
from markupsafe import Markup

from nested_rl import redact
from nested_rl.report import charts
from nested_rl.rundir import RunDir
from nested_rl.types import Episode, Problem, Score, Validation

MOST_CHARACTERS = 24_000
"""Of one attempt, over its files. The page says where the rest is."""
MOST_FILES = 12

_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def inert(text: str) -> str:
    r"""Text with its invisible characters (control, direction) spelled out, so that a reader sees what a machine reads.

    >>> inert("a\u202eb")
    'a⟨U+202E⟩b'
    """
    return _INVISIBLE.sub(lambda found: f"⟨U+{ord(found.group()):04X}⟩", text)


@frozen(kw_only=True)
class ShownFile:
    """One file as written. `code` is highlighted and safe; `cut` is how many characters were left out."""

    name: str
    code: Markup
    cut: int = 0


@frozen(kw_only=True)
class Attempt:
    """One submission: its files, the verdict, and what changed since the one before (lines with their sign)."""

    number: int
    ok: bool
    problems: tuple[Problem, ...]
    files: tuple[ShownFile, ...]
    changes: tuple[tuple[str, str], ...] = ()
    more_files: int = 0


@frozen(kw_only=True)
class Showcase:
    """An episode for the page. `folder` is relative to the run directory."""

    title: str
    why: str
    episode: Episode
    folder: str
    attempts: tuple[Attempt, ...]
    best: Score | None
    curve: Markup


def show(run: RunDir, episode: Episode, *, title: str, why: str, under: str = "episodes") -> Showcase:
    """Read what the agent wrote from the episode's folder. `under` is as of `RunDir.episode_dir`."""
    root = run.episode_dir(episode.group, episode.member, under=under)
    attempts: list[Attempt] = []
    before: Mapping[str, str] = {}
    for number, validation in enumerate(episode.validations, 1):
        files = _read(root / "attempts" / str(number) / "files")
        attempts.append(_attempt(number, validation, files, before))
        before = files
    curve = episode.result.curve if episode.result else ()
    return Showcase(
        title=title,
        why=why,
        episode=episode,
        folder=str(root.relative_to(run.path)),
        attempts=tuple(attempts),
        best=episode.outcome.best_baseline,
        curve=Markup(charts.spark(curve, alt="the job's own reward while it trained")),  # noqa: S704  made of numbers
    )


def _attempt(number: int, validation: Validation, files: Mapping[str, str], before: Mapping[str, str]) -> Attempt:
    order = sorted(files, key=lambda name: (name.startswith("data/"), name))[:MOST_FILES]
    room = MOST_CHARACTERS
    shown: list[ShownFile] = []
    for name in order:
        text = files[name]
        code = highlighted(inert(text[:room]), name)
        shown.append(ShownFile(name=inert(name), code=code, cut=max(0, len(text) - room)))
        room = max(0, room - len(text))
    return Attempt(
        number=number,
        ok=validation.ok,
        problems=validation.problems,
        files=tuple(shown),
        changes=_changes(before, files) if before else (),
        more_files=len(files) - len(order),
    )


def _read(folder: Path) -> dict[str, str]:
    """Every regular file; a link is not followed."""
    if not folder.is_dir():
        return {}
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): redact.text(path.read_bytes().decode("utf-8", "replace")) for path in found}


def highlighted(text: str, name: str) -> Markup:
    """HTML of source code: every character escaped, colours by class."""
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]

    language = {"py": "python", "toml": "toml", "json": "json", "jsonl": "json"}.get(name.rpartition(".")[2], "text")
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    return Markup(highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="c-")))  # noqa: S704  the formatter escapes


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A unified diff of all files: (sign, line) with sign "+", "-", " " or "@" for a heading."""
    found: list[tuple[str, str]] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, ""), after.get(name, "")
        if old == new:
            continue
        found.append(("@", inert(name)))
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=2)
        found += [(line[:1], inert(line[1:501])) for line in list(lines)[2:] if not line.startswith("@@")]
    return tuple(found[:400])
