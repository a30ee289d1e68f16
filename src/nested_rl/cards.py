"""A card: what a family's `task.toml` says, and where the family's folder is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from attrs import evolve, field, fields, frozen

from nested_rl.errors import SettingsError, UnknownName
from nested_rl.types import Scale


def home() -> Path:
    """The built-in families: inside the installed package, or at the top of the repository."""
    installed = Path(__file__).parent / "families"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "tasks"


@frozen(kw_only=True)
class Level:
    """One scale of a family: default difficulty, the range of k, how many distinct questions there are, length of answers."""

    difficulty: int
    k: tuple[int, int] = field(converter=tuple)
    space: str = ""
    max_tokens: int = 16


@frozen(kw_only=True)
class Card:
    """`task.toml` as values, with the folder it came from and the scale and difficulty in use."""

    name: str
    title: str
    summary: str
    folder: Path
    held_out: bool = False
    nano: Level | None = None
    full: Level | None = None
    scale: Scale = "full"
    difficulty: int = 0

    @classmethod
    def read(cls, folder: Path) -> Card:
        """From a folder. SettingsError or UnknownName when `task.toml` says something that is not understood."""
        path = folder / "task.toml"
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error
        _refuse_unknown(table, {"title", "summary", "held_out", "nano", "full"}, f"key in {path}")
        for scale in get_args(Scale):
            if scale in table:
                _refuse_unknown(table[scale], {f.name for f in fields(Level)}, f"key in {path} [{scale}]")
        try:
            levels: dict[str, Any] = {scale: Level(**table.pop(scale)) for scale in get_args(Scale) if scale in table}
            return cls(name=folder.name, folder=folder, **table, **levels)
        except TypeError as error:
            raise SettingsError(f"{path}: {error}") from error

    @property
    def level(self) -> Level:
        """The level of the scale in use."""
        level = self.nano if self.scale == "nano" else self.full
        if level is None:
            raise SettingsError(
                f"family {self.name!r} has no scale {self.scale!r}; add a table [{self.scale}] to task.toml"
            )
        return level

    def at(self, scale: Scale, difficulty: int | None = None) -> Card:
        """The same family at another scale, at that scale's default difficulty unless one is given."""
        if scale not in get_args(Scale):
            raise UnknownName("scale", scale, get_args(Scale))
        card = evolve(self, scale=scale)
        low, high = card.level.k
        wanted = card.level.difficulty if difficulty is None else difficulty
        if not low <= wanted <= high:
            raise SettingsError(f"{self.name}: difficulty {wanted} is outside {low}..{high} at scale {scale!r}")
        return evolve(card, difficulty=wanted)


def _refuse_unknown(table: Mapping[str, object], known: set[str], kind: str) -> None:
    for key in table:
        if key not in known:
            raise UnknownName(kind, key, known)
