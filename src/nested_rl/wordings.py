"""A wording: one template that both writes a question and reads it back.

A question is a frame with slots. A slot in braces stands for one word or number, or, if it is named in `pieces`, for a list
of smaller templates, each with a kind:

>>> sums = Wording("Start with {start}. {steps} What is the result?", {"steps": {"+": "Add {x}.", "-": "Take away {x}."}})
>>> text = sums.write(start=4, steps=[("+", {"x": 3}), ("-", {"x": 2})])
>>> text
'Start with 4. Add 3. Take away 2. What is the result?'
>>> sums.read(text)
({'start': '4'}, {'steps': [('+', {'x': '3'}), ('-', {'x': '2'})]})

Because both directions use the same template, a question can always be led back to its canonical key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Fields: TypeAlias = dict[str, str]
Pieces: TypeAlias = dict[str, list[tuple[str, Fields]]]

LONGEST = 8_000
"""Texts longer than this many characters are not questions; reading them is refused before any matching."""


class Wording:
    """A frame, its lists of pieces, and `closing`: advice on the answer's form, which is written but need not be there to read."""

    def __init__(self, frame: str, pieces: Mapping[str, Mapping[str, str]], *, closing: str = "") -> None:
        self._frame, self._pieces, self._closing = frame, pieces, closing
        self._frame_re = re.compile(_pattern(frame, pieces), re.IGNORECASE)
        self._piece_res = {
            slot: [(kind, re.compile(" ?" + _pattern(t, {}), re.IGNORECASE)) for kind, t in templates.items()]
            for slot, templates in pieces.items()
        }

    def write(self, **slots: object) -> str:
        """The question. A list slot takes a sequence of (kind, fields)."""
        filled = {name: self._join(name, value) for name, value in slots.items()}
        return " ".join(f"{self._frame.format(**filled)} {self._closing}".split())

    def read(self, text: str) -> tuple[Fields, Pieces] | None:
        """What was written, or None. Case, spacing and text around the question do not matter."""
        if len(text) > LONGEST:
            return None
        found = self._frame_re.search(" ".join(text.split()))
        if found is None:
            return None
        fields = found.groupdict()
        return fields, {slot: self._split(slot, fields.pop(slot)) for slot in self._pieces}

    def _join(self, slot: str, value: object) -> str:
        if slot not in self._pieces:
            return str(value)
        assert isinstance(value, Sequence)
        return " ".join(self._pieces[slot][kind].format(**fields) for kind, fields in value)

    def _split(self, slot: str, text: str) -> list[tuple[str, Fields]]:
        out: list[tuple[str, Fields]] = []
        at = 0
        while at < len(text):  # the frame matched, so some piece matches here
            found, kind = next((f, k) for k, p in self._piece_res[slot] if (f := p.match(text, at)))
            out.append((kind, found.groupdict()))
            at = found.end()
        return out


def _pattern(template: str, lists: Mapping[str, Mapping[str, str]], *, named: bool = True) -> str:
    """A regular expression for a template. A list slot matches any number of its pieces; a word has a bounded length."""
    out = ""
    for i, part in enumerate(re.split(r"\{(\w+)\}", template)):
        if i % 2 == 0:
            out += re.escape(part).replace(r"\ ", " ")
            continue
        inner = r"\w{1,32}"
        if part in lists:
            inner = "(?: ?(?:" + "|".join(_pattern(t, {}, named=False) for t in lists[part].values()) + "))+"
        out += rf"(?P<{part}>{inner})" if named else f"(?:{inner})"
    return out
