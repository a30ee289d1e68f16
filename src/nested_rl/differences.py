"""In what two experiments differ, and what to say of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from nested_rl.types import JSON

REWARD = "parts.reward."
"""Where run.toml tells the reward function."""
COMPUTE = "parts.compute"
"""Where it tells the machines. Which ones jobs run on is not part of an experiment, but for the image."""
IMAGE = f"{COMPUTE}.image"
Differences: TypeAlias = Mapping[str, tuple[JSON, JSON]]
"""Field with dots → before, now; None where it is not said."""


def differences(old: Mapping[str, JSON], new: Mapping[str, JSON], *, may_change: tuple[str, ...]) -> Differences:
    """Everything that differs, but for the tables and fields in `may_change`, and the image of machines that had none.

    >>> differences({"seed": 0, "budget": {"usd": 1.0}}, {"seed": 1}, may_change=("budget",))
    {'seed': (0, 1)}
    """
    before, now = _flat(old), _flat(new)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and not _may(name, pair, may_change)}


def of_machines(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> Differences:
    """In what the machines differ."""
    told = ({COMPUTE: dict(spec.get("parts", {})).get("compute", {})} for spec in (old, new))
    return differences(*told, may_change=())


def _may(name: str, pair: tuple[JSON, JSON], may_change: tuple[str, ...]) -> bool:
    if name == IMAGE and None not in pair:
        return False
    return any(name == one or name.startswith(f"{one}.") for one in may_change)


def reward_alone(found: Differences) -> bool:
    """Whether it is the same but for the reward."""
    return all(name.startswith(REWARD) for name in found)


def refusal(path: Path, found: Differences, *, steps: int) -> str:
    """Why a run with so many steps done cannot be gone on with, and what can be done."""
    lines = "; ".join(f"{name}: was {before!r}, now {now!r}" for name, (before, now) in found.items())
    todo = "choose another `out`, undo the difference, or start over here with `--fresh` on the command line"
    if reward_alone(found):
        todo += (
            f". What it holds was trained on the old reward (steps done: {steps}); to see what the new one pays for it: "
            f"nested-rl replay {path} --reward FILE.py:NAME"
        )
    if IMAGE in found:
        todo += ". Other machines may do its jobs at any time, but from the same image: that is the trainer they run"
    return f"{path} holds another experiment ({lines}); {todo}"


def _flat(table: Mapping[str, JSON], above: str = "") -> dict[str, JSON]:
    """Tables in tables as one, with dotted names."""
    flat: dict[str, JSON] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat
