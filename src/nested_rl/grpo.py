"""Group-relative policy optimisation with importance sampling, as far as it is arithmetic: shared by every outer trainer.

The loss of a batch is −(1/N) Σ ρ̄ₜ · A · log π(token), with A the member's advantage in its group, ρ = π/π_sampler,
ρ̄ = min(ρ, cap) as a constant weight, and N the sampled tokens of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from nested_rl.errors import SettingsError
from nested_rl.types import Group, Transcript, Turn

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]

_LOG_RATIO_LIMIT = 20.0
"""exp of this is large enough to be truncated by any cap, and finite in float32."""


def advantages(rewards: Sequence[float | None], *, std_floor: float = 0.05) -> list[float | None]:
    """(reward − mean) / (standard deviation + floor) in a group. A masked member (None) takes no part and gets None.

    A group with fewer than two real members has no baseline: everybody gets None.

    >>> advantages([1.0, None, 0.0], std_floor=0.0)
    [1.0, None, -1.0]
    >>> advantages([1.0, None])
    [None, None]
    """
    real = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in real):
        raise SettingsError(f"rewards must be finite, got {rewards}")
    if len(real) < 2:
        return [None] * len(rewards)
    mean = math.fsum(real) / len(real)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in real) / len(real))
    if max(real) == min(real):  # rounding must not become a signal
        return [None if r is None else 0.0 for r in rewards]
    return [None if r is None else (r - mean) / (deviation + std_floor) for r in rewards]


@frozen(kw_only=True)
class Datum:
    """One sequence to train on, all of the same length T: `inputs[t]` and what came before it predict `targets[t]`.

    Where `sampled` is False the target was not the policy's own: its advantage and log-probability are 0.
    """

    inputs: tuple[int, ...] = field(repr=False)
    targets: tuple[int, ...] = field(repr=False)
    sampled: tuple[bool, ...] = field(repr=False)
    logprobs: tuple[float, ...] = field(repr=False)
    advantages: tuple[float, ...] = field(repr=False)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole sequence, T + 1 tokens."""
        return (*self.inputs[:1], *self.targets)

    @property
    def trained(self) -> int:
        """How many targets were sampled."""
        return sum(self.sampled)


def datums(transcript: Transcript, advantage: float) -> list[Datum]:
    """The sampled tokens of an episode, verbatim, in as few sequences as hold them.

    A turn whose prompt begins with everything before it goes on in the same sequence; any other starts a new one.
    Raises SettingsError when a turn holds no ids, so that a frozen policy is never trained by mistake.
    """
    found: list[_Sequence] = []
    for number, turn in enumerate(transcript.turns):
        if turn.prompt_ids is None or turn.ids is None or turn.logprobs is None:
            raise SettingsError(f"turn {number} has no ids or log-probabilities: a frozen policy cannot be trained")
        _check(turn, turn.prompt_ids, turn.ids, turn.logprobs, number)
        if not turn.ids:
            continue
        if not found or turn.prompt_ids[: len(found[-1].tokens)] != tuple(found[-1].tokens):
            found.append(_Sequence())
        found[-1].grow(turn.prompt_ids, turn.ids, turn.logprobs)
    return [sequence.datum(advantage) for sequence in found]


def group_datums(group: Group, *, std_floor: float = 0.05) -> list[Datum]:
    """All sequences of a group's real members, in order of members; none when the group is skipped."""
    rewards = [None if e.masked else e.reward for e in group.episodes]
    found: list[Datum] = []
    for episode, advantage in zip(group.episodes, advantages(rewards, std_floor=std_floor), strict=True):
        if advantage is not None:
            found += datums(episode.transcript, advantage)
    return found


def ratios(new: Floats, old: Floats) -> Floats:
    """exp(new − old) of log-probabilities, kept finite."""
    import numpy as np

    return np.exp(np.clip(new - old, -_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))


def truncate(ratio: Floats, cap: float) -> Floats:
    """min(ratio, cap): one stale token cannot outweigh a batch. The weight is a constant, so the gradient stays.

    >>> import numpy as np
    >>> truncate(np.array([0.5, 3.0]), 2.0).tolist()
    [0.5, 2.0]
    """
    import numpy as np

    if not cap > 0:
        raise SettingsError(f"the ratio cap must be above 0, not {cap}")
    return np.minimum(ratio, cap)


def coefficients(ratio: Floats, advantage: Floats, *, cap: float, tokens: int) -> Floats:
    """dLoss/dlogprob of every sampled token: −min(ratio, cap) · advantage / tokens."""
    return -truncate(ratio, cap) * advantage / tokens


def effective_sample_size(ratio: Floats) -> float:
    """(Σρ)² / (n Σρ²), in (0, 1]: which share of the batch still counts. 1 for an empty batch.

    >>> import numpy as np
    >>> effective_sample_size(np.ones(5))
    1.0
    """
    import numpy as np

    if len(ratio) == 0:
        return 1.0
    scaled = np.asarray(ratio, np.float64) / float(np.max(ratio))  # neither sum can overflow or vanish
    return float(scaled.sum() ** 2 / (len(scaled) * (scaled**2).sum()))


@frozen(kw_only=True)
class RatioStats:
    """How far the trained policy is from the one that sampled."""

    mean: float = 1.0
    max: float = 1.0
    ess: float = 1.0

    @classmethod
    def of(cls, ratio: Floats) -> RatioStats:
        """From the ratios of a batch, before truncation; all 1 for an empty one."""
        if len(ratio) == 0:
            return cls()
        return cls(mean=float(ratio.mean()), max=float(ratio.max()), ess=effective_sample_size(ratio))


class _Sequence:
    """A sequence while it grows, turn by turn."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sampled: list[bool] = []
        self.logprobs: list[float] = []

    def grow(self, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float]) -> None:
        said = prompt[len(self.tokens) :]
        self.tokens += [*said, *ids]
        self.sampled += [False] * len(said) + [True] * len(ids)
        self.logprobs += [0.0] * len(said) + [float(x) for x in logprobs]

    def datum(self, advantage: float) -> Datum:
        return Datum(
            inputs=tuple(self.tokens[:-1]),
            targets=tuple(self.tokens[1:]),
            sampled=tuple(self.sampled[1:]),
            logprobs=tuple(self.logprobs[1:]),
            advantages=tuple(advantage if mine else 0.0 for mine in self.sampled[1:]),
        )


def _check(turn: Turn, prompt: Sequence[int], ids: Sequence[int], logprobs: Sequence[float], number: int) -> None:
    if len(ids) != len(logprobs):
        raise SettingsError(f"turn {number} has {len(ids)} ids but {len(logprobs)} log-probabilities")
    if ids and not prompt:
        raise SettingsError(f"turn {number} was sampled from an empty prompt: nothing predicts its first token")
    if not all(math.isfinite(x) for x in logprobs):
        raise SettingsError(f"turn {number} (version {turn.version}) has a log-probability that is not finite")
