"""Reading an answer out of what a model wrote. Strict about the answer, lenient about its form."""

from __future__ import annotations

import re

MARK, END = ">", "."
"""At nano scale a completion is working, `>`, answer, `.`; the final `.` is the end-of-text token and may be cut off."""

_NANO = re.compile(r"[^>.]*>([a-z0-9]+)\Z")
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_LABEL = re.compile(r"\banswer\b[\s*_]*(?:is\b|[:=])+\s*(.+)\Z", re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?)\$?(\d[\d,]*)(\.\d+)?")
_WRAPPING = " \t\"'`*_$.,;:!()[]"


def nano(text: str) -> str:
    """The answer in a nano completion, or "" when there is no well-formed one.

    >>> nano("72>6."), nano("7 2 > 6"), nano("726"), nano("7>2>6.")
    ('6', '6', '', '')
    """
    return found[1] if (found := _NANO.match("".join(text.split(END, 1)[0].split()).lower())) else ""


def last_line(text: str) -> str:
    r"""The candidate answer in free text: a box, else what follows "answer:", else the last line, without its wrapping.

    >>> last_line("2 and 3 make 5.\n\n**Answer: 5**"), last_line(r"so \boxed{1,204}."), last_line(" ")
    ('5', '1,204', '')
    """
    text = _THINK.sub(" ", text).replace("\N{MINUS SIGN}", "-")
    if boxes := _BOXED.findall(text):
        return str(boxes[-1]).strip(_WRAPPING)
    lines = [line for line in text.splitlines() if line.strip(_WRAPPING)]
    if not lines:
        return ""
    found = _LABEL.search(lines[-1])
    return (found[1] if found else lines[-1]).strip(_WRAPPING)


def number(text: str) -> str:
    """A whole number in canonical form, or "" if the text does not hold exactly one. Works on digits, never on int().

    >>> number("1,204"), number("It is -007."), number("9 + 3 = 12.00 coins"), number("3 or 4"), number("3.5")
    ('1204', '-7', '12', '', '')
    """
    found = _NUMBER.findall(text.rpartition("=")[2])
    if len(found) != 1:
        return ""
    sign, whole, fraction = found[0]
    if fraction.strip(".0"):
        return ""
    digits = whole.replace(",", "").lstrip("0")
    return sign.strip("+") + digits if digits else "0"


def words(text: str) -> str:
    """Letters and digits in lower case, one space between.

    >>> words("  Ada,  NORTH ")
    'ada north'
    """
    return " ".join(re.findall(r"[^\W_]+", text.lower()))
