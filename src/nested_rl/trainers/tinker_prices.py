"""What Tinker costs: tokens are counted here, prices come from the user, and the provider's own figures are read beside them.

There is no price table in this package: prices change, and a wrong one is worse than none. Without `prices=` everything is
counted in tokens and the dollars are 0, which is said once in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import evolve, field, frozen, validators

from nested_rl.errors import SettingsError, UnknownName

_NOT_NEGATIVE = validators.ge(0)
_PER_MTOK = ("prefill_usd_per_mtok", "sample_usd_per_mtok", "train_usd_per_mtok")


@frozen(kw_only=True)
class Tokens:
    """Tokens by what is billed: prompts that were read, tokens that were sampled, tokens of training passes.

    >>> Tokens(train=3) + Tokens(train=1, prefill=2)
    Tokens(prefill=2, sample=0, train=4)
    """

    prefill: int = 0
    sample: int = 0
    train: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return evolve(
            self,
            prefill=self.prefill + other.prefill,
            sample=self.sample + other.sample,
            train=self.train + other.train,
        )


@frozen(kw_only=True)
class Prices:
    """Dollars per million tokens of one model; where they are from, and of which date."""

    prefill_usd_per_mtok: float = field(validator=_NOT_NEGATIVE)
    sample_usd_per_mtok: float = field(validator=_NOT_NEGATIVE)
    train_usd_per_mtok: float = field(validator=_NOT_NEGATIVE)
    source: str = ""
    as_of: str = ""

    def usd(self, tokens: Tokens) -> float:
        """What so many tokens cost."""
        return (
            tokens.prefill * self.prefill_usd_per_mtok
            + tokens.sample * self.sample_usd_per_mtok
            + tokens.train * self.train_usd_per_mtok
        ) / 1e6


def prices(table: Prices | Mapping[str, Any] | None) -> Prices | None:
    """Prices from a table; None stays None, which means unknown. Raises UnknownName for a key that is no price.

    >>> prices({"prefill_usd_per_mtok": 0.1, "sample_usd_per_mtok": 0.4, "train_usd_per_mtok": 0.5}).usd(Tokens(train=2_000_000))
    1.0
    """
    if table is None or isinstance(table, Prices):
        return table
    known = (*_PER_MTOK, "source", "as_of")
    for key in table:
        if key not in known:
            raise UnknownName("price", key, known)
    missing = [key for key in _PER_MTOK if key not in table]
    if missing:
        raise SettingsError(f"prices also needs {' and '.join(missing)} (0 for what is free)")
    try:
        numbers = {key: float(table[key]) for key in _PER_MTOK}
        return Prices(**numbers, source=str(table.get("source", "")), as_of=str(table.get("as_of", "")))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"prices: {error.args[0] if error.args else error}") from error


@frozen(kw_only=True)
class Billed:
    """What the provider says about some sessions: estimated dollars, tokens, and tokens that it has not priced yet."""

    usd: float = 0.0
    tokens: Tokens = Tokens()
    unpriced: int = 0

    def against(self, counted: Tokens, usd: float) -> str:
        """One sentence that puts both side by side."""
        late = f", {self.unpriced:,} tokens not priced yet" if self.unpriced else ""
        return (
            f"billed ${self.usd:.4f}{late} (prefill {self.tokens.prefill:,}, sample {self.tokens.sample:,}, train "
            f"{self.tokens.train:,}); counted here ${usd:.4f} (prefill {counted.prefill:,}, sample {counted.sample:,}, "
            f"train {counted.train:,})"
        )


_KINDS: Mapping[str, str] = {"training": "train", "sampling_prefill": "prefill", "sampling_sample": "sample"}


def billed(events: Collection[Any], sessions: Collection[str]) -> Billed:
    """The sum over the billing events of some sessions. Storage and checkpoints count in dollars only."""
    found = Billed()
    for event in events:
        if event.session_id not in sessions:
            continue
        count = int(getattr(event.event_info, "token_count", 0))
        kind = _KINDS.get(event.event_info.type)
        usd = event.estimated_cost_usd
        found = Billed(
            usd=found.usd + (usd or 0.0),
            tokens=found.tokens + (Tokens(**{kind: count}) if kind else Tokens()),
            unpriced=found.unpriced + (count if usd is None else 0),
        )
    return found
