"""Several sequences in one row, each blind to the others, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from nested_rl.errors import SettingsError
from nested_rl.nano.arrays import HIDDEN, Floats, Ints

_PADDING = -1
_PROMPT = 0


@frozen(kw_only=True)
class Packed:
    """Rows for `Qwen3.forward`, and where the k trained tokens are predicted.

    ids, positions [n, L]; mask [n, 1, 1, L, L] float32, additive; source [k]: the flat row of the output that predicts
    targets [k]; index [k, m]: where each target came from, see the function that packed.
    """

    ids: Ints
    positions: Ints
    mask: Floats
    source: Ints
    targets: Ints
    index: Ints

    def __len__(self) -> int:
        return len(self.targets)


def causal(length: int) -> Floats:
    """Additive mask [length, length]: nothing later may be seen."""
    return np.triu(np.full((length, length), HIDDEN, np.float32), 1)


def padded_left(ids: Ints, pad_id: int) -> Ints:
    """How many pads lead each row [n]."""
    leading: Ints = np.logical_and.accumulate(ids == pad_id, axis=1).sum(1)
    return leading


def left_padded(ids: Ints, pad_id: int) -> tuple[Ints, Floats, Floats | None]:
    """ids [n, t] -> positions [n, t] from the first real token, mask [n or 1, 1, 1, t, t], hidden keys [n, 1, 1, 1, t].

    The hidden keys are None when nothing is padded.
    """
    n, t = ids.shape
    pads = padded_left(ids, pad_id)
    mask = causal(t)[None, None, None]
    columns = np.arange(t)[None]
    if not pads.any():
        return np.broadcast_to(columns, (n, t)), mask, None
    hidden = np.where(columns < pads[:, None], HIDDEN, 0).astype(np.float32)[:, None, None, None, :]
    return np.maximum(columns - pads[:, None], 0), mask + hidden, hidden


def _blocks(segments: Ints, shared: int | None = None) -> Floats:
    """segments [n, L] -> mask [n, 1, 1, L, L]: causal inside a segment; `shared` is seen by everyone after it."""
    keys = segments[:, None, :]
    seen = segments[:, :, None] == keys
    if shared is not None:
        seen |= keys == shared
    seen &= np.tri(segments.shape[1], dtype=bool)
    return np.where(seen, np.float32(0), np.float32(HIDDEN))[:, None, None]


def pack_groups(prompts: Ints, completions: Ints, lengths: Ints, pad_id: int) -> Packed:
    """One row a prompt, with its completions end to end: the prompt is computed once, a long sample costs only itself.

    prompts [n, tp] left padded, completions [n, G, tc] right padded, lengths [n, G] real tokens of each.
    index [k, 3] = (prompt, member, token). The last token of a completion predicts nothing and is not fed.
    """
    n, tp = prompts.shape
    tc = completions.shape[2]
    fed = np.maximum(lengths - 1, 0)
    starts = tp + np.cumsum(fed, 1) - fed
    L = tp + int(fed.sum(1).max())
    prompt_positions = left_padded(prompts, pad_id)[0]
    pads = padded_left(prompts, pad_id)
    ids = np.full((n, L), pad_id, np.int64)
    positions = np.zeros((n, L), np.int64)
    segments = np.full((n, L), _PADDING)
    ids[:, :tp] = prompts
    positions[:, :tp] = prompt_positions
    segments[:, :tp] = np.where(np.arange(tp)[None] < pads[:, None], _PADDING, _PROMPT)
    i, g, j = np.nonzero(np.arange(tc) < fed[..., None])
    column = starts[i, g] + j
    ids[i, column] = completions[i, g, j]
    positions[i, column] = prompt_positions[i, -1] + 1 + j
    segments[i, column] = g + 1
    i, g, j = np.nonzero(np.arange(tc) < lengths[..., None])
    source = i * L + np.where(j == 0, tp - 1, starts[i, g] + j - 1)
    return Packed(
        ids=ids,
        positions=positions,
        mask=_blocks(segments, _PROMPT),
        source=source,
        targets=completions[i, g, j],
        index=np.stack([i, g, j], 1),
    )


def pack_pairs(ids: Ints, lengths: Ints, start: Ints, pad_id: int) -> Packed:
    """Two sequences a row, the shortest with the longest: for pre-training on rows of like lengths.

    ids [n, T] right padded, lengths [n], start [n] = the first trained column (at least 1). index [k, 2] = (row, column).
    """
    n, T = ids.shape
    fed = lengths - 1
    order = np.argsort(fed, kind="stable")
    half = (n + 1) // 2
    row, offset, first = np.empty(n, np.int64), np.zeros(n, np.int64), np.empty(half, np.int64)
    row[order[:half]] = np.arange(half)
    row[order[half:]] = np.arange(n - half)[::-1]
    first[row[order[:half]]] = fed[order[:half]]
    offset[order[half:]] = first[row[order[half:]]]
    trained = (np.arange(T) < lengths[:, None]) & (np.arange(T) >= start[:, None])
    return _place(ids, fed, trained, row, offset, pad_id)


def pack_rows(
    sequences: Sequence[Sequence[int]], trained: Sequence[Sequence[bool]], pad_id: int, *, capacity: int | None = None
) -> Packed:
    """Any sequences, as many in a row as fit into `capacity` (None: the longest one), first fit from the longest.

    trained: one flag a token; the first token of a sequence is never predicted. index [k, 2] = (sequence, token), ordered
    by sequence, then by token.
    """
    if not sequences or min(map(len, sequences)) < 2:
        raise SettingsError("pack_rows needs sequences of two tokens or more: the first one predicts the second")
    lengths = np.array([len(s) for s in sequences], np.int64)
    T = int(lengths.max())
    ids = np.full((len(sequences), T), pad_id, np.int64)
    flags = np.zeros(ids.shape, bool)
    for i, (sequence, flag) in enumerate(zip(sequences, trained, strict=True)):
        ids[i, : len(sequence)] = sequence
        flags[i, : len(sequence)] = flag
    fed = lengths - 1
    room = max(capacity or 0, T - 1)
    used: list[int] = []
    row, offset = np.zeros(len(fed), np.int64), np.zeros(len(fed), np.int64)
    for i in np.argsort(-fed, kind="stable"):
        fits = next((r for r, u in enumerate(used) if u + fed[i] <= room), len(used))
        if fits == len(used):
            used.append(0)
        row[i], offset[i] = fits, used[fits]
        used[fits] += int(fed[i])
    flags[:, 0] = False
    return _place(ids, fed, flags, row, offset, pad_id)


def _place(ids: Ints, fed: Ints, trained: Floats, row: Ints, offset: Ints, pad_id: int) -> Packed:
    """Put the first `fed` tokens of every sequence into its row at its offset."""
    L = int((offset + fed).max())
    rows = int(row.max()) + 1
    packed = np.full((rows, L), pad_id, np.int64)
    positions = np.zeros((rows, L), np.int64)
    segments = np.full((rows, L), _PADDING)
    i, j = np.nonzero(np.arange(ids.shape[1]) < fed[:, None])
    r, column = row[i], offset[i] + j
    packed[r, column] = ids[i, j]
    positions[r, column] = j
    segments[r, column] = i
    i, j = np.nonzero(trained)
    return Packed(
        ids=packed,
        positions=positions,
        mask=_blocks(segments),
        source=row[i] * L + offset[i] + j - 1,
        targets=ids[i, j],
        index=np.stack([i, j], 1),
    )
