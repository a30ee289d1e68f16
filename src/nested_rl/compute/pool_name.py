"""The name of a pod tells whose it is and until when it may live, so that a list of pods is enough to clear up."""

from __future__ import annotations

import functools
import re
import string
from typing import Final

from attrs import frozen

PREFIX: Final = "nrl"
LONGEST: Final = 60
_DIGITS: Final = string.digits + string.ascii_lowercase
_SHAPE: Final = re.compile(rf"{PREFIX}-([0-9a-z]{{8}})-([0-9]{{1,4}})-([0-9a-z]{{6}})-([0-9a-z]{{1,9}})")


@frozen(kw_only=True)
class PodName:
    """`nrl-RUN-SLOT-NONCE-DEADLINE`; the deadline in seconds since the epoch, base 36.

    >>> name = PodName(run="abcd1234", slot=3, nonce="x0y1z2", deadline=1_790_000_000)
    >>> str(name)
    'nrl-abcd1234-3-x0y1z2-tlpwu8'
    >>> PodName.read(str(name)) == name
    True
    """

    run: str
    slot: int
    nonce: str
    deadline: int

    def __str__(self) -> str:
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        """Asked for at every look at every pod."""
        return f"{PREFIX}-{self.run}-{self.slot}-{self.nonce}-{_base36(self.deadline)}"

    @classmethod
    def read(cls, text: str) -> PodName | None:
        """None when it is not the name of one of our pods."""
        if len(text) > LONGEST or (found := _SHAPE.fullmatch(text)) is None:
            return None
        run, slot, nonce, deadline = found.groups()
        return cls(run=run, slot=int(slot), nonce=nonce, deadline=int(deadline, 36))


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
