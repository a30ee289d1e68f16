"""What a plan takes for granted: every figure with its spread, its unit, and where it is from.

Nothing here is a promise. `low`, `mid` and `high` are ordered so that `high` is the dearer end of each: a plan's range is what
comes out when all of them are at their cheaper, and at their dearer end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
from attrs import evolve, field, frozen

from nested_rl import matrix
from nested_rl.errors import SettingsError
from nested_rl.types import JSON, Scale

End: TypeAlias = Literal["low", "mid", "high"]
ANY: Final = "*"


def _ordered(self: Guess, _: object, high: float) -> None:
    if not 0 <= self.low <= self.mid <= high < float("inf"):
        raise SettingsError(
            f"an assumption needs 0 <= low <= mid <= high, and {self.low:g}, {self.mid:g}, {high:g} ({self.unit}) are not so"
        )


@frozen
class Guess:
    """One figure. Raises SettingsError unless 0 <= low <= mid <= high.

    >>> Guess.of(20, "s", "measured").at("high")
    20
    """

    low: float
    mid: float
    high: float = field(validator=_ordered)
    unit: str = field(kw_only=True)
    source: str = field(kw_only=True)

    @classmethod
    def of(cls, value: float, unit: str, source: str) -> Guess:
        """A figure without a spread."""
        return cls(value, value, value, unit=unit, source=source)

    def at(self, end: End) -> float:
        """Its cheaper end, its middle, or its dearer end."""
        return {"low": self.low, "mid": self.mid, "high": self.high}[end]

    @property
    def text(self) -> str:
        """As a table shows it."""
        low, mid, high = (f"{x:,.0f}" if x >= 1000 else f"{x:.3g}" for x in (self.low, self.mid, self.high))
        return f"{mid} {self.unit}" if low == high else f"{mid} {self.unit} ({low} to {high})"


@frozen(kw_only=True)
class TokenPrices:
    """Dollars per million tokens of the agent's model; None: not known, tokens are shown without a price."""

    prefill: Guess
    sample: Guess
    train: Guess


@frozen(kw_only=True)
class Assumptions:
    """What a plan draws from. `job_s` is by (base, GPU) with "*" for any; the more exact entry counts. An attempt is one submission.

    >>> told = Assumptions.stated("nano")
    >>> told.with_values(update_s=3.0).update_s.source
    'given'
    """

    job_s: Mapping[tuple[str, str], Guess]
    """Seconds that a job holds its machine, training and scoring together. Kinds of machine as in `matrix.kind`, without a cloud."""
    job_spread: Guess
    """Of one job from another: sigma of the logarithm of its seconds."""
    job_failure: Guess
    """Share of deliveries that fail for reasons of ours."""
    baseline_s: Guess
    """Seconds to score one untrained base on one split of a family's evaluation."""
    tries: Guess
    """Share of an agent's chances to hand in that it takes; with any other its episode is over."""
    valid: Guess
    """Share of attempts that are accepted."""
    distinct: Guess
    """Share of accepted jobs that are run; the others are identical to an earlier one."""
    probe_s: Guess
    """Seconds to check one attempt."""
    turns: Guess
    """Turns of the agent for one chance to hand in."""
    turn_s: Guess
    """Seconds of one turn."""
    prompt_tokens: Guess
    """Tokens that one turn reads, those that it has read before included."""
    sample_tokens: Guess
    """Tokens that one turn writes."""
    train_tokens: Guess
    """Tokens of one episode in the outer trainer's passes."""
    update_s: Guess
    """Seconds of one outer update, with saving and the new sampler."""
    boot_s: Guess
    """Seconds from the request for a pod until it runs."""
    preflight_s: Guess
    """Seconds of a new pod's checks."""
    boot_failure: Guess
    """Share of pods that never come up."""
    refused: Guess
    """Share of requests for a pod that are refused for want of capacity."""
    lost_per_hour: Guess
    """Pods lost in one pod's hour."""
    capacity: Mapping[str, int] = field(factory=dict)
    """At most so many pods of a candidate, by its name; others without a limit."""
    usd_per_hour: Mapping[str, Guess] = field(factory=dict)
    """Of a whole machine, by the candidate's name, such as "2x NVIDIA RTX A5000 (secure)"."""
    token_prices: TokenPrices | None = None
    episode_usd: Guess | None = None
    """What agent and training cost an episode, where tokens have no price."""

    @classmethod
    def stated(cls, scale: Scale) -> Assumptions:
        """What is assumed where nothing was measured: of the nano stack, or of jobs at full scale on rented GPUs."""
        from nested_rl.plan import stated

        return cls(**(stated.NANO if scale == "nano" else stated.FULL))

    def with_values(self, **values: Any) -> Assumptions:
        """Others in their place: a Guess, or a plain number, which is then said to be given. Raises SettingsError for an unknown name."""
        known = {a.name for a in attrs.fields(Assumptions)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise SettingsError(f"no assumption is called {name!r}; known: {', '.join(sorted(known))}")
            given[name] = _given(name, value, getattr(self, name))
        return evolve(self, **given)

    def seconds(self, base: str, gpu: str) -> Guess:
        """Of a job with this base on this kind of machine."""
        kinds = (gpu, matrix.kind(gpu), ANY)
        for place in ((b, g) for g in kinds for b in (base, ANY)):
            if place in self.job_s:
                return self.job_s[place]
        known = ", ".join(f"{b} on {g}" for b, g in self.job_s) or "nothing"
        raise SettingsError(f"no job time for {base} on {gpu}: known is {known}; give job_s an entry ('*', '*')")

    def rows(self) -> Iterator[tuple[str, Guess]]:
        """Every figure with its name."""
        for (base, gpu), guess in self.job_s.items():
            yield f"job_s[{base}, {gpu}]", guess
        for a in attrs.fields(Assumptions):
            value = getattr(self, a.name)
            if isinstance(value, Guess):
                yield a.name, value
        for name, guess in self.usd_per_hour.items():
            yield f"usd_per_hour[{name}]", guess
        if self.token_prices is not None:
            for name in ("prefill", "sample", "train"):
                yield f"price of {name} tokens", getattr(self.token_prices, name)

    def to_json(self) -> dict[str, JSON]:
        """Every figure by name, and the capacities."""
        return {**{name: attrs.asdict(guess) for name, guess in self.rows()}, "capacity": dict(self.capacity)}


def _given(name: str, value: Any, old: Any) -> Any:
    """A value as somebody may write it, in a script or in TOML."""
    if _number(value) and isinstance(old, Guess):
        return Guess.of(float(value), old.unit, "given")
    if name == "job_s" and (_number(value) or isinstance(value, Guess)):
        return {(ANY, ANY): value if isinstance(value, Guess) else Guess.of(float(value), "s", "given")}
    if name == "usd_per_hour" and isinstance(value, Mapping):
        return {**old, **{k: Guess.of(float(v), "$/h", "given") if _number(v) else v for k, v in value.items()}}
    if name == "episode_usd" and _number(value):
        return Guess.of(float(value), "$ an episode", "given")
    kinds = {"capacity": Mapping, "usd_per_hour": Mapping, "job_s": Mapping, "token_prices": TokenPrices}
    if not isinstance(value, kinds.get(name, Guess)):
        raise SettingsError(f"assumption {name}: expected a number or a Guess, not {value!r}")
    return value


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def spread(values: Sequence[float], unit: str, source: str) -> Guess | None:
    """The mean of what was measured, give or take two standard errors; None of nothing.

    >>> spread([1.0, 1.0], "s", "x").text
    '1 s'
    """
    if not values:
        return None
    n, mean = len(values), sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    give = 2 * (variance / n) ** 0.5
    return Guess(max(0.0, mean - give), mean, mean + give, unit=unit, source=source)
