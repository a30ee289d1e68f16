"""How a policy is trained on Tinker."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

from attrs import Attribute, field, frozen, validators

Loss: TypeAlias = Literal["importance_sampling", "ppo", "cispo"]

DAY_S: Final = 24 * 3600
_HOUR, _TEN_YEARS = 1 / 24, 3650.0


def _number(_: object, attribute: Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{attribute.name} must be a number, not {value!r}")


def _count(_: object, attribute: Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} must be a whole number, not {value!r}")


def _cap(_: object, attribute: Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1):
        raise ValueError(f"{attribute.name} must be a number, 1 or more, or None; not {value!r}")


def _days(_: object, attribute: Attribute[Any], value: Any) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not _HOUR <= value <= _TEN_YEARS
    ):
        raise ValueError(f"{attribute.name} must be between an hour (1/24) and ten years, or None; not {value!r}")


def _betas(_: object, attribute: Attribute[tuple[float, float]], value: tuple[float, float]) -> None:
    if len(value) != 2 or not all(0 <= beta < 1 for beta in value):
        raise ValueError(f"{attribute.name} must be two numbers from 0 to below 1, not {value!r}")


def _range(_: object, attribute: Attribute[tuple[float, float]], value: tuple[float, float]) -> None:
    if len(value) != 2 or not 0 <= value[0] <= 1 <= value[1]:
        raise ValueError(f"{attribute.name} must be two numbers around 1, such as (0.8, 1.2), not {value!r}")


@frozen(kw_only=True)
class Recipe:
    """LoRA of `rank` by Adam, and the loss.

    `ratio_cap` truncates importance ratios of the loss "importance_sampling", at the price of one more forward pass an
    update; None leaves them. `clip_range` bounds the ratios of "ppo" and "cispo". `kl` weighs the KL to the starting
    weights in the advantages; `std_floor` is added to a group's deviation; `clip` bounds the gradient norm, 0 for no bound.
    """

    rank: int = field(default=8, validator=[_count, validators.ge(1)])
    lr: float = field(default=4e-5, validator=[_number, validators.gt(0)])
    loss: Loss = field(default="importance_sampling", validator=validators.in_(get_args(Loss)))
    ratio_cap: float | None = field(default=2.0, validator=_cap)
    clip_range: tuple[float, float] = field(default=(0.8, 1.2), validator=_range)
    kl: float = field(default=0.0, validator=[_number, validators.ge(0)])
    std_floor: float = field(default=0.05, validator=[_number, validators.ge(0)])
    betas: tuple[float, float] = field(default=(0.9, 0.95), validator=_betas)
    eps: float = field(default=1e-8, validator=[_number, validators.gt(0)])
    weight_decay: float = field(default=0.0, validator=[_number, validators.ge(0)])
    clip: float = field(default=0.0, validator=[_number, validators.ge(0)])
    seed: int = field(default=0, validator=[_count, validators.ge(0)])

    def loss_config(self) -> dict[str, float] | None:
        """What goes with the loss over the wire."""
        if self.loss == "importance_sampling":
            return None
        low, high = self.clip_range
        return {"clip_low_threshold": low, "clip_high_threshold": high}


@frozen(kw_only=True)
class Keeping:
    """What is kept, for how long, and what is checked."""

    ttl_days: float | None = field(default=30.0, validator=_days)
    canary_every: int = field(default=1, validator=[_count, validators.ge(0)])

    @property
    def ttl_s(self) -> int | None:
        """The lifetime of a checkpoint; None for ever."""
        return None if self.ttl_days is None else round(self.ttl_days * DAY_S)
