"""Batches for Tinker, from the datums that every trainer shares: truncation, KL to the start, and what was learnt from them.

Observation tokens are in the sequence with advantage 0; targets are the inputs shifted by one; sampled ids are as they were
sampled. The hosted loss is a sum over tokens, which Adam does not notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, frozen

from nested_rl import grpo
from nested_rl.errors import TrainerError
from nested_rl.types import Group

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.floating[Any]]


@frozen(kw_only=True)
class Batch:
    """The sequences of one update, and how many versions ago each was sampled."""

    datums: tuple[grpo.Datum, ...] = ()
    lags: tuple[int, ...] = ()

    @classmethod
    def of(cls, groups: Sequence[Group], *, version: int, std_floor: float, flat: bool = False) -> Batch:
        """The sequences that have a gradient. `flat` keeps the others too, where a KL pulls at them.

        What has no gradient is not sent: it would cost as much as the rest. Without any advantage there is no batch.
        """
        found = [(datum, version - g.version) for g in groups for datum in grpo.group_datums(g, std_floor=std_floor)]
        signal = [pair for pair in found if any(pair[0].advantages)]
        kept = found if flat and signal else signal
        return cls(datums=tuple(d for d, _ in kept), lags=tuple(lag for _, lag in kept))

    @property
    def tokens(self) -> int:
        """Tokens that one pass over the batch reads."""
        return sum(len(d.inputs) for d in self.datums)

    @property
    def trained(self) -> int:
        """Sampled tokens."""
        return sum(d.trained for d in self.datums)

    def ratios(self, logprobs: Sequence[Floats]) -> Floats:
        """π/π_sampler of every sampled token, from the trainer's log-probabilities of all targets."""
        return _concatenate([grpo.ratios(new[m], old[m]) for new, old, m in self._pairs(logprobs)])

    def gap(self, logprobs: Sequence[Floats]) -> float:
        """The largest difference between trainer and sampler on what was sampled at this very version; 0 without such."""
        fresh = [
            np.abs(new[m] - old[m])
            for (new, old, m), lag in zip(self._pairs(logprobs), self.lags, strict=True)
            if lag == 0
        ]
        together = _concatenate(fresh)
        return float(together.max()) if len(together) else 0.0

    def truncated(self, logprobs: Sequence[Floats], cap: float) -> Batch:
        """The same batch with sampler log-probabilities raised so far that no ratio is above `cap`.

        The loss takes its ratio from them, so this is min(ratio, cap) as a weight.
        """
        return self._with(
            "logprobs", [np.where(m, np.maximum(old, new - np.log(cap)), 0.0) for new, old, m in self._pairs(logprobs)]
        )

    def pulled(self, reference: Sequence[Floats], kl: float) -> Batch:
        """The same batch with the KL to the starting weights in its advantages, as a reward of each token.

        A token gets kl · (mean − log π/π_start), with the mean over the batch, so that the KL alone favours nobody.
        """
        apart = [np.where(m, old - ref, 0.0) for ref, old, m in self._pairs(reference)]
        mean = sum(float(a.sum()) for a in apart) / max(1, self.trained)
        pairs = zip(self.datums, apart, strict=True)
        return self._with("advantages", [np.where(d.sampled, d.advantages + kl * (mean - a), 0.0) for d, a in pairs])

    def start_kl(self, reference: Sequence[Floats]) -> float:
        """The mean of log π_sampler/π_start over the sampled tokens: an estimate of the KL to the start."""
        return float(_concatenate([(old - ref)[m] for ref, old, m in self._pairs(reference)]).mean())

    def loudest(self, n: int) -> list[int]:
        """The places of the `n` sequences with the largest advantages; of equal ones the shorter."""
        loud = [max(map(abs, d.advantages), default=0.0) for d in self.datums]
        return sorted(range(len(loud)), key=lambda i: (-loud[i], len(self.datums[i].inputs), i))[:n]

    def take(self, places: Sequence[int]) -> Batch:
        """Some of the sequences."""
        return Batch(datums=tuple(self.datums[i] for i in places), lags=tuple(self.lags[i] for i in places))

    def sampled(self, values: Sequence[Floats]) -> Floats:
        """Of one value a target, those of the sampled ones, in order."""
        return _concatenate([v[m] for v, _, m in self._pairs(values)])

    def staleness(self) -> dict[str, float]:
        """How many sequences were sampled so many versions ago."""
        return {f"stale_{lag}": float(self.lags.count(lag)) for lag in sorted(set(self.lags))}

    def complete(self, values: Sequence[Sequence[float | None]]) -> list[Floats]:
        """What a sampler says of the targets; raises TrainerError when it leaves a sampled one out."""
        for datum, row in zip(self.datums, values, strict=True):
            if len(row) != len(datum.targets) or any(x is None and m for x, m in zip(row, datum.sampled, strict=True)):
                raise TrainerError("the sampler did not give the log-probability of every token it was asked for")
        return [np.array([0.0 if x is None else x for x in row]) for row in values]

    def wire(self, sdk: Any) -> list[Any]:
        """The same as the SDK's own datums."""
        return [_wire(d, sdk) for d in self.datums]

    def _pairs(self, values: Sequence[Floats]) -> list[tuple[Floats, Floats, npt.NDArray[np.bool_]]]:
        return [
            (np.asarray(v, np.float64), np.asarray(d.logprobs), np.asarray(d.sampled, bool))
            for v, d in zip(values, self.datums, strict=True)
        ]

    def _with(self, name: str, values: Sequence[Floats]) -> Batch:
        pairs = zip(self.datums, values, strict=True)
        return evolve(self, datums=tuple(evolve(d, **{name: tuple(v.tolist())}) for d, v in pairs))


def _wire(datum: grpo.Datum, sdk: Any) -> Any:
    return sdk.Datum(
        model_input=sdk.ModelInput.from_ints(list(datum.inputs)),
        loss_fn_inputs={
            "target_tokens": np.asarray(datum.targets, np.int64),
            "logprobs": np.asarray(datum.logprobs, np.float32),
            "advantages": np.asarray(datum.advantages, np.float32),
        },
    )


def logprobs(output: Any) -> list[Floats]:
    """Log-probabilities of all targets, one array a sequence, in what forward and forward_backward give."""
    return [np.asarray(found["logprobs"].to_numpy(), np.float64) for found in output.loss_fn_outputs]


def _concatenate(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.zeros(0)
