"""What a job may say: the keys of job.toml, the files, the imports, and what the probe asks of its data and reward.

An inner trainer has one `Surface`; a new dialect is a new one, and none of the checks change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import field, frozen, validators

from nested_rl.jobs.runner import MODULES
from nested_rl.types import Problem

Table: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Mapping[str, Table]], Sequence[Problem]]
"""Looks at all resolved values, by table and key, and says what does not fit together."""
Reader: TypeAlias = Callable[[Table], Sequence[Problem]]
"""Looks at a table as it was written, with tables in it, and says what is wrong with it."""

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


@frozen(kw_only=True)
class Key:
    """One key of job.toml. Without a default it is required. `low` and `high` are allowed values.

    >>> Key(type=int, low=1, high=40).wants
    'a whole number from 1 to 40'
    >>> Key(type=str, choices=("constant", "linear")).wants
    "'constant' or 'linear'"
    """

    type: type[int | float | str | bool] = field(validator=validators.in_(tuple(_WORDS)))
    low: float | None = None
    high: float | None = None
    default: int | float | str | bool | None = None
    choices: tuple[str | int, ...] = ()
    hint: str = ""

    @property
    def required(self) -> bool:
        """Whether a job must set it."""
        return self.default is None

    def accepts(self, value: object) -> bool:
        """Right type (true is not a number, 3.0 is not a whole number), finite, and in range."""
        if type(value) is not self.type and not (self.type is float and type(value) is int):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if self.choices and value not in self.choices:
            return False
        if self.type in (int, float):
            assert isinstance(value, int | float)
            return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return True

    @property
    def wants(self) -> str:
        """What it accepts, in words."""
        if self.choices:
            return " or ".join(repr(choice) for choice in self.choices)
        words, show = _WORDS[self.type], "d" if self.type is int else "g"
        if self.low is not None and self.high is not None:
            return f"{words} from {self.low:{show}} to {self.high:{show}}"
        if self.low is not None:
            return f"{words} of at least {self.low:{show}}"
        return f"{words} of at most {self.high:{show}}" if self.high is not None else words


@frozen(kw_only=True)
class FileRules:
    """Which files a job may have. Sizes are bytes of UTF-8; `data_files` 0 means no data folder."""

    job_bytes: int = 16_384
    code_bytes: int = 65_536
    data_files: int = 0
    data_bytes: int = 4_194_304


@frozen(kw_only=True)
class ProbeRules:
    """What is asked of a job's data and reward.

    `rows` are asked of `examples`, of which at least `distinct` (a share) must differ, with at least `answers` different
    answers; `graded` of them are graded.
    Prompts and answers have at most so many characters, from `letters` (None: any). `answer_forms` are completions that
    give an answer, such as ">{answer}."; junk replies have at most `reply_chars`, and those of models that can say anything
    (`talkative`) are of more kinds; rewards lie in ±`reward_cap`.
    """

    rows: int = 32
    graded: int = 8
    distinct: float = 0.25
    answers: int = 1
    prompt_chars: int = 8_000
    answer_chars: int = 2_000
    letters: frozenset[str] | None = None
    answer_forms: tuple[str, ...] = field(default=("{answer}",), validator=validators.min_len(1))
    reply_chars: int = 2_000
    talkative: bool = False
    reward_cap: float = 100.0


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@frozen(kw_only=True)
class Surface:
    """Everything that an inner trainer allows.

    `tables` are the keys of job.toml by table; `[model] base` is always there and takes one of `bases`. `advanced` names
    the optional tables whose use is counted. `imports` are the modules that environment.py may import, `kit` the names it
    may take from `nested_rl.jobkit` (none: the kit is refused). `rules` check values against each other. `open` are tables
    whose keys are those of another program: each is read by a function and kept as it was written.
    """

    tables: Mapping[str, Mapping[str, Key]]
    bases: tuple[str, ...]
    advanced: frozenset[str] = field(default=frozenset(), converter=_names)
    imports: frozenset[str] = field(default=frozenset(MODULES), converter=_names)
    kit: frozenset[str] = field(default=frozenset(), converter=_names)
    files: FileRules = FileRules()
    probe: ProbeRules = ProbeRules()
    rules: tuple[Rule, ...] = ()
    open: Mapping[str, Reader] = field(factory=dict)

    @property
    def keys(self) -> Mapping[str, Mapping[str, Key]]:
        """All tables, `[model] base` first."""
        model = {"base": Key(type=str), **self.tables.get("model", {})}
        return {"model": model, **{name: keys for name, keys in self.tables.items() if name != "model"}}
