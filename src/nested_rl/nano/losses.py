"""Log-probabilities of chosen tokens, and the gradient of any loss that is a function of them.

A loss enters as its coefficients dLoss/dlogprob: cross-entropy is −1/N, a policy gradient −advantage · ratio / N.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen

from nested_rl.nano.arrays import Floats, Ints
from nested_rl.nano.model import Qwen3, Tape
from nested_rl.nano.packing import Packed


@frozen(kw_only=True)
class Scored:
    """Log-probabilities of the k trained tokens of a packing, with what their backward needs.

    logprobs [k] of the targets; distribution [k, vocab] of everything; probabilities [k, vocab].
    """

    packed: Packed
    temperature: float
    logprobs: Floats
    distribution: Floats
    probabilities: Floats
    tape: Tape | None

    @property
    def entropy(self) -> Floats:
        """Entropy [k] of each prediction, in nats."""
        nats: Floats = -np.einsum("kv,kv->k", self.probabilities, self.distribution)
        return nats


def log_softmax(logits: Floats) -> tuple[Floats, Floats]:
    """logits [..., vocab] -> log-probabilities, probabilities."""
    z = logits - logits.max(-1, keepdims=True)
    e = np.exp(z)
    total = e.sum(-1, keepdims=True)
    return z - np.log(total), e / total


def score(model: Qwen3, packed: Packed, *, temperature: float = 1.0, tape: bool = False) -> Scored:
    """Run the model over a packing. With `tape=True` a `backward` can follow."""
    record = Tape() if tape else None
    x = model.forward(packed.ids, packed.positions, packed.mask, tape=record)
    logits = model.logits(x[packed.source], record)
    distribution, probabilities = log_softmax(logits if temperature == 1 else logits / temperature)
    return Scored(
        packed=packed,
        temperature=temperature,
        logprobs=distribution[np.arange(len(packed)), packed.targets],
        distribution=distribution,
        probabilities=probabilities,
        tape=record,
    )


def backward(model: Qwen3, scored: Scored, coefficients: Floats, dlogits: Floats | None = None) -> None:
    """Add to `model.grad` the gradient of a loss with coefficients [k] = dLoss/dlogprob.

    `dlogits` [k, vocab] is added as it is, at the logits already divided by the temperature: for losses of the whole
    distribution, such as a KL to another model.
    """
    if scored.tape is None:
        raise ValueError("backward needs score(..., tape=True)")
    co = coefficients.astype(model.theta.dtype)
    d = scored.probabilities * -co[:, None]
    d[np.arange(len(co)), scored.packed.targets] += co
    if dlogits is not None:
        d += dlogits
    if scored.temperature != 1:
        d /= scored.temperature
    dh = model.logits_backward(d, scored.tape)
    model.backward(_scatter(dh, scored.packed.source, scored.packed.ids.size), scored.tape)


def token_logprobs(model: Qwen3, packed: Packed, *, temperature: float = 1.0) -> Floats:
    """Log-probabilities [k] of the trained tokens, in the order of `packed.targets`."""
    return score(model, packed, temperature=temperature).logprobs


def backward_from_coefficients(
    model: Qwen3,
    packed: Packed,
    coefficients: Floats | Callable[[Floats], Floats],
    *,
    temperature: float = 1.0,
) -> Floats:
    """Forward and backward in one; coefficients [k] = dLoss/dlogprob, or a function of the log-probabilities [k].

    Starts a new gradient in `model.grad` and returns the log-probabilities.
    """
    scored = score(model, packed, temperature=temperature, tape=True)
    model.zero_grad()
    backward(model, scored, coefficients(scored.logprobs) if callable(coefficients) else coefficients)
    return scored.logprobs


def _scatter(rows: Floats, source: Ints, n: int) -> Floats:
    """[n, d] with rows [k, d] added at source [k]; sums repeats (the first tokens of a group share one row)."""
    out = np.zeros((n, rows.shape[1]), rows.dtype)
    if not len(source):
        return out
    order = np.argsort(source, kind="stable")
    at = source[order]
    starts = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    out[at[starts]] = np.add.reduceat(rows[order], starts)
    return out
