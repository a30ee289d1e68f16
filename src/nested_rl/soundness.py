"""Whether the code of a task family holds, tried before anything is paid for.

`key()` and `grade()` of a family read what agents and models write, which may be anything. Where they raise, a fault of the family
would look like one of the machines, and whoever writes such a text on purpose would have its episode left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nested_rl import blame
from nested_rl.errors import NestedRLError, SettingsError
from nested_rl.interfaces import TaskFamily
from nested_rl.types import EvalSet, Item

ODD: Final = (
    "",
    " ",
    "\n\n",
    "?",
    "0",
    "-1",
    "1.5e999",
    "{}",
    "()" * 200,
    "(" * 5000,
    "a" * 5000,
    "1" * 5000,  # more digits than int() reads
    "é١２\N{ZERO WIDTH JOINER}",
    "\x00\x7f",
    "\ud800",
    "[[\\",
    "%s %(a)d {0!r}",
)
"""Texts that are no question and no answer of any family."""


def tried(family: TaskFamily) -> TaskFamily:
    """The family, after it has given a task with its prompt, and an evaluation. SettingsError, with the place in its code, if it cannot."""
    try:
        task = next(iter(family.tasks("train", seed=0)))
        family.eval_set(task, "hidden", salt="tried", n=1)
    except NestedRLError:
        raise
    except Exception as error:
        raise SettingsError(f"family {family.name} gives no task: {blame.said(error)}") from error
    return family


def check(family: TaskFamily, sets: Sequence[EvalSet]) -> None:
    """Try `key()` on the family's own questions, on mutilated ones and on odd texts, and `grade()` on the latter.

    Raises SettingsError that says what was tried and what came of it. A family that has neither method passes.
    """
    items = [item for eval_set in sets for item in eval_set.items]
    if hasattr(family, "key"):
        for item in items:
            if (found := _key(family, item.prompt)) != item.key:
                raise SettingsError(
                    f"family {family.name}: key({item.prompt!r}) gives {found!r}, but the key of this item of its own is "
                    f"{item.key!r}; its questions could not be kept out of training"
                )
        for text in (*ODD, *_mutilated(items[:8])):
            _key(family, text)
    if hasattr(family, "grade"):
        for item in items[:2]:
            for text in (*ODD, *_mutilated([item]), item.answer):
                _grade(family, item, text)


def _mutilated(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        for text in (item.prompt, item.answer):
            yield from (text[:-1], text[1:], text[: len(text) // 2], text * 2, text.upper(), f" {text} \n", text[::-1])


def _key(family: TaskFamily, text: str) -> str | None:
    try:
        found: object = family.key(text)
    except Exception as error:
        raise _broken(family, f"key({_short(text)})", error) from error
    if found is not None and not isinstance(found, str):
        raise SettingsError(f"family {family.name}: key({_short(text)}) gives {found!r}, which is no text and not None")
    return found


def _grade(family: TaskFamily, item: Item, text: str) -> None:
    try:
        correct: object = family.grade(item, text).correct
    except Exception as error:
        raise _broken(family, f"grade(item {item.key!r}, {_short(text)})", error) from error
    if not isinstance(correct, bool):
        raise SettingsError(
            f"family {family.name}: grade(item {item.key!r}, {_short(text)}).correct is {correct!r}, which is neither True nor False"
        )


def _broken(family: TaskFamily, call: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"family {family.name}: {call} raised {blame.said(error)}; it must take any text, and say None or wrong of "
        "what it cannot read"
    )


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}… ({len(text)} characters)"
