"""What an episode is worth: `UpliftReward`, and the one place where a reward function of yours is called and checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from numbers import Real
from typing import TypeGuard

from attrs import Attribute, field, frozen

from nested_rl import blame
from nested_rl.errors import RewardError, SettingsError
from nested_rl.interfaces import RewardFn
from nested_rl.types import Metrics, Outcome

FIRST_TRY = {1: 1.0, 2: 0.6, 3: 0.3}
"""What a valid job is worth by the number of submissions it took."""

CLEAR = 2.0
"""An uplift counts as real when it is more than this many standard errors."""


def _weight(_: object, attribute: Attribute[float], value: float) -> None:
    if not (_is_number(value) and math.isfinite(value) and value >= 0):
        raise SettingsError(f"UpliftReward({attribute.name}={value!r}): a weight is a finite number, 0 or more")


@frozen(kw_only=True)
class UpliftReward:
    """The default reward: mostly how much better the trained model is than the best untrained one.

    Calling it gives three raw parts in [0, 1]; the reward is their sum weighted by `weights`.
    The speed part is paid only when the uplift clears its own noise, or an instant job that trains nothing would beat a
    true small gain.

    >>> from nested_rl.types import Score, Task
    >>> task = Task(id="t", family="calc_chain", difficulty=3)
    >>> base, post = Score.of([0.0, 1.0, 0.0, 1.0] * 64), Score.of([1.0] * 256)
    >>> outcome = Outcome(task=task, valid=True, attempts=1, baselines={"nano-m": base}, post=post, cost=1, cost_limit=4)
    >>> UpliftReward()(outcome)
    {'validation': 1.0, 'quality': 0.625, 'speed': 0.75}
    """

    validation: float = field(default=0.35, validator=_weight)
    quality: float = field(default=0.60, validator=_weight)
    speed: float = field(default=0.05, validator=_weight)

    @property
    def weights(self) -> Mapping[str, float]:
        """What each part is multiplied by."""
        return {"validation": self.validation, "quality": self.quality, "speed": self.speed}

    def __call__(self, outcome: Outcome) -> Metrics:
        """The raw parts of one outcome."""
        return {"validation": _validation(outcome), "quality": quality(outcome), "speed": _speed(outcome)}


def _validation(outcome: Outcome) -> float:
    return FIRST_TRY.get(outcome.attempts, 0.0) if outcome.valid else 0.0


def quality(outcome: Outcome) -> float:
    return 0.0 if outcome.post is None else _clip(0.25 * outcome.post.value + 0.75 * outcome.uplift)


def _speed(outcome: Outcome) -> float:
    noise = outcome.noise
    if outcome.cost_limit <= 0 or not math.isfinite(noise) or not outcome.uplift > CLEAR * noise:
        return 0.0
    return _clip(1.0 - outcome.cost / outcome.cost_limit)


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))


async def evaluate(fn: RewardFn, outcome: Outcome) -> tuple[float, dict[str, float]]:
    """The reward and its raw parts, from any sync or async reward function.

    A number is the reward itself and has no parts; True is 1.0 and False 0.0. A mapping of named parts is added up, each
    part multiplied by `fn.weights[part]` when the function has such weights. Raises RewardError when the function raises,
    gives anything but finite numbers, or gives a part a name that cannot be a column `reward/NAME` of the metrics.

    >>> import asyncio
    >>> from nested_rl.types import Task
    >>> outcome = Outcome(task=Task(id="t", family="calc_chain", difficulty=3), usd=0.5)
    >>> asyncio.run(evaluate(lambda o: {"thrift": 1 - o.usd, "bonus": 1}, outcome))
    (1.5, {'thrift': 0.5, 'bonus': 1.0})
    """
    name = _name(fn)
    try:
        value = fn(outcome)
        if inspect.isawaitable(value):
            value = await value
    except Exception as error:
        raise RewardError(f"reward function {name} raised {blame.said(error)}") from error
    if not isinstance(value, Mapping):
        return _number(_counted(value), f"reward function {name} returned"), {}
    parts = {
        _part(key, name): _number(_counted(part), f"part {key!r} of reward function {name} is")
        for key, part in value.items()
    }
    weights = _weights(fn, name)
    if weights is None:
        return math.fsum(parts.values()), parts
    missing = sorted(parts.keys() - weights.keys())
    if missing:
        raise RewardError(
            f"reward function {name} has no weight for part {missing[0]!r}; its weights: {sorted(weights)}"
        )
    return math.fsum(weights[key] * part for key, part in parts.items()), parts


def _name(fn: RewardFn) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _part(key: object, name: str) -> str:
    if not isinstance(key, str):
        raise RewardError(f"reward function {name} returned a part named {key!r}; names of parts are strings")
    if key == "mean":
        raise RewardError(
            f"reward function {name} returned a part named 'mean', but `reward/mean` is the reward itself; "
            "give the part another name"
        )
    if not key or "/" in key or any(c.isspace() for c in key):
        raise RewardError(
            f"reward function {name} returned a part named {key!r}; the name of a part becomes a column `reward/NAME`, "
            "so it needs at least one character, and no white space and no '/'"
        )
    return key


def _weights(fn: RewardFn, name: str) -> dict[str, float] | None:
    weights = getattr(fn, "weights", None)
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise RewardError(
            f"`weights` of reward function {name} is {type(weights).__name__}; it must map parts to numbers"
        )
    return {_part(k, name): _number(w, f"weight {k!r} of reward function {name} is") for k, w in weights.items()}


def _counted(value: object) -> object:
    """True and False, numpy's too, count as 1.0 and 0.0: `return outcome.valid` is a reward."""
    kind = type(value)
    numpy_bool = kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")  # numpy itself is not loaded for it
    return float(bool(value)) if numpy_bool or isinstance(value, bool) else value


def _number(value: object, where: str) -> float:
    if not _is_number(value):
        raise RewardError(f"{where} {value!r} ({type(value).__name__}); it must be a finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"{where} {number!r}; it must be a finite number")
    return number


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)
