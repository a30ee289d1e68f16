"""A scripted writer of plausible, mostly faulty jobs: what the nano agent learns the language from, before any RL.

It knows the format well and the craft badly. About one transcript in eight is right at once; after an error it gives up, does
something useless or repairs what the reply names. Good settings are only a little likelier than poor ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from attrs import define

from nested_rl import replies
from nested_rl.pretrain.pieces import NAMES
from nested_rl.types import ToolCall

T = TypeVar("T")
Acts: TypeAlias = Generator[ToolCall, str, None]

FAULTY: Final = 0.35
CAREFUL: Final = 0.22
"""How likely each of the larger faults is, without and with a look at the baselines; smaller ones are a share of it."""

TRAINING: Final = ("steps", "learning_rate", "batch_size", "group_size")
FIELDS: Final = ("base", *TRAINING, "temperature")
OUT_OF_RANGE: Final[Mapping[str, str]] = {"steps": "900", "learning_rate": "1.0", "group_size": "1"}
REPAIRED: Final[Mapping[str, Sequence[str]]] = {
    "base": ('"nano-m"', '"nano-s"'),
    "steps": ("8", "16"),
    "learning_rate": ("5e-4", "1e-3", "1e-4"),
    "batch_size": ("128", "64"),
    "group_size": ("8", "4"),
    "temperature": ("1.0",),
}
SOUND: Final = (
    "float(parse(completion) == answer)",
    "1.0 if parse(completion) == answer else 0.0",
    '0.9 * (parse(completion) == answer) + 0.1 * (">" in completion)',
)
WEAK: Final = (
    "float(answer in completion)",
    "float(completion.endswith(answer))",
    "(parse(completion) == answer) - 0.1 * len(completion)",
    '0.1 * (parse(completion) == answer) + 0.9 * (">" in completion)',
)
FLAT: Final = (
    '1.0 if ">" in completion else 0.0',
    "1.0",
    "1.0 - len(completion) / 16",
    "float(parse(completion) != answer)",
)
RAISES: Final = ("float(completion)", "1.0 if parse(completion) == gold else 0.0", "float(completion[99] == answer)")
TEXT: Final = ('"good"', "parse(completion)")
BROKEN: Final = ("1.0 if parse(completion) == answer", "float(parse(completion) == answer", '1.0 if ">" in completion')

_PROBLEMS: Final = {
    code: re.compile("error: " + re.sub(r"\\{\w+\\}", "(.*)", re.escape(text))) for code, text in replies.BRIEF.items()
}


@define(kw_only=True)
class Sketch:
    """The two files, before they are text. `given` is the family's name as the task has it."""

    given: str
    values: dict[str, str]
    reward: str
    name: str
    k: str
    imports: str = "make, parse"
    colon: str = ":"
    advanced: str = ""

    def line(self, key: str) -> str:
        """One line of job.toml."""
        return f"{key} = {self.values[key]}\n"

    @property
    def job(self) -> str:
        """job.toml."""
        values = self.values
        text = "[model]\n" + (self.line("base") if "base" in values else "")
        text += "[training]\n" + "".join(self.line(key) for key in TRAINING if key in values)
        if "temperature" in values:
            text += "[rollout]\n" + self.line("temperature")
        return text + (f"[nano]\n{self.advanced}\n" if self.advanced else "")

    @property
    def make(self) -> str:
        """The start of the call that makes examples."""
        return f'make("{self.name}"'

    @property
    def answer(self) -> str:
        """The line that returns the reward."""
        return f"    return {self.reward}\n"

    @property
    def environment(self) -> str:
        """environment.py."""
        start = f"from nested_rl.jobkit import {self.imports}\n" if self.imports else ""
        return (
            f"{start}def examples(rng, n):\n    return {self.make}, rng, n, k={self.k})\n"
            f"def reward(prompt, completion, answer){self.colon}\n{self.answer}"
        )


def invent_name(rng: random.Random) -> str:
    """A family's name: one or two words."""
    return "_".join(rng.sample(NAMES, rng.choices((1, 2), (0.4, 0.6))[0]))


def sketch(rng: random.Random, given: str, scores: Mapping[str, float] | None) -> Sketch:
    """A draft with faults. `scores` is what the baselines were shown to be, None when they were not asked for.

    Who asks before writing also writes with more care.
    """
    chance = rng.random
    faulty = FAULTY if scores is None else CAREFUL
    values = {
        "base": f'"{_base(rng, scores)}"',
        "steps": _pick(rng, {"1": 0.10, "4": 0.20, "8": 0.30, "16": 0.40}),
        "learning_rate": _pick(rng, {"1e-5": 0.11, "1e-4": 0.16, "5e-4": 0.29, "1e-3": 0.36, "1e-2": 0.08}),
    }
    if chance() < 0.5:
        values["batch_size"] = _pick(rng, {"64": 0.25, "128": 0.75})
    if chance() < 0.6:
        values["group_size"] = _pick(rng, {"4": 0.4, "8": 0.6})
    if chance() < 0.7:
        values["temperature"] = _pick(rng, {"0.1": 0.08, "0.5": 0.17, "1.0": 0.75})
    for key, bad in OUT_OF_RANGE.items():
        if key in values and chance() < faulty / 2:
            values[key] = bad
    if chance() < faulty:
        del values[rng.choice(("base", "steps", "learning_rate"))]
    return Sketch(
        given=given,
        values=values,
        reward=_reward(rng, sound=chance() > 1.3 * faulty),
        name=given if chance() < (0.87 if scores is None else 0.93) else _other_name(rng, given),
        k=_pick(rng, {"1": 0.2, "2": 0.3, "(1, 3)": 0.5}),
        imports="make, parse" if chance() > faulty / 2 else rng.choice(("make", "parse", "")),
        colon=":" if chance() > faulty / 4 else "",
        advanced=rng.choice(("clip = 0.1", "clip = 0.2", "clip = 0.3", "weight_decay = 0.1"))
        if chance() < 0.15
        else "",
    )


def act(rng: random.Random, given: str) -> Acts:
    """What the novice does in one episode: yields calls, is sent the replies. Returning means giving up."""
    chance = rng.random
    if chance() < 0.06:
        yield ToolCall(name="list_files")
    if chance() < 0.06:
        yield ToolCall(name="read_file", arguments={"path": "README.md"})
    scores = None
    if chance() < 0.4:
        scores = read_scores((yield ToolCall(name="get_baseline_scores")))
    draft = sketch(rng, given, scores)
    writes = [write_job(draft), write_environment(draft)]
    rng.shuffle(writes)
    for write in writes if chance() > 0.06 else writes[:1]:  # noqa: UP028 - a list cannot be sent replies
        yield write
    if chance() < (0.14 if scores is None else 0.07):
        return
    while True:
        reply = yield ToolCall(name="submit_job")
        if chance() < 0.4:
            return
        if chance() < 0.3:
            if chance() < 0.5:
                continue  # the same again
            draft = sketch(rng, given, scores)
            yield rng.choice((write_job, write_environment))(draft)
        else:
            yield repair(rng, draft, reply)


def repair(rng: random.Random, draft: Sketch, reply: str) -> ToolCall:
    """Change what the reply names, rightly in three cases out of four, and write it by an edit or as a whole file."""
    code, named = what_is_wrong(reply)
    right = rng.random() < 0.75
    if code == "files.missing" or named in FIELDS:
        return _repair_job(rng, draft, named, right=right) if named in FIELDS else _missing(draft, named)
    if code.startswith("job."):
        return write_job(draft)
    if code.startswith("reward."):
        old = draft.answer
        draft.reward = _reward(rng, sound=right)
        return _edit(rng, "environment.py", old, draft.answer) or write_environment(draft)
    if code == "examples.family":
        old = draft.make
        draft.name = draft.given if right else _other_name(rng, draft.given)
        return _edit(rng, "environment.py", old, draft.make) or write_environment(draft)
    if right:
        draft.colon, draft.imports = ":", "make, parse"
        if code == "environment.syntax" and draft.reward in BROKEN:
            draft.reward = rng.choice(SOUND)
    return write_environment(draft)


def what_is_wrong(reply: str) -> tuple[str, str]:
    """The code of a brief problem and the name in it; empty when it is no problem.

    >>> what_is_wrong("error: bad value steps")
    ('job.value', 'steps')
    """
    for code, pattern in _PROBLEMS.items():
        if found := pattern.fullmatch(reply):
            return code, found[1] if found.groups() else ""
    return "", ""


def read_scores(reply: str) -> dict[str, float]:
    """The scores in a reply.

    >>> read_scores("accuracy nano-s 0.26 nano-m 0.71")
    {'nano-s': 0.26, 'nano-m': 0.71}
    """
    words = reply.split()[1:]
    return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def write_job(draft: Sketch) -> ToolCall:
    """Write job.toml."""
    return ToolCall(name="write_file", arguments={"path": "job.toml", "content": draft.job})


def write_environment(draft: Sketch) -> ToolCall:
    """Write environment.py."""
    return ToolCall(name="write_file", arguments={"path": "environment.py", "content": draft.environment})


def _repair_job(rng: random.Random, draft: Sketch, key: str, *, right: bool) -> ToolCall:
    old = draft.line(key) if key in draft.values else ""
    draft.values[key] = rng.choice(REPAIRED[key]) if right or key not in OUT_OF_RANGE else OUT_OF_RANGE[key]
    if not old:
        header = {"base": "[model]\n", "temperature": "[rollout]\n"}.get(key, "[training]\n")
        return _edit(rng, "job.toml", header, header + draft.line(key)) or write_job(draft)
    return _edit(rng, "job.toml", old, draft.line(key)) or write_job(draft)


def _missing(draft: Sketch, path: str) -> ToolCall:
    return write_job(draft) if path == "job.toml" else write_environment(draft)


def _edit(rng: random.Random, path: str, old: str, new: str) -> ToolCall | None:
    if rng.random() < 0.4:
        return None
    return ToolCall(name="edit_file", arguments={"path": path, "old": old, "new": new})


def _base(rng: random.Random, scores: Mapping[str, float] | None) -> str:
    """Without scores the bases are equally likely; with them the stronger one is preferred."""
    if rng.random() < 0.1:
        return "nano-l"
    if scores is None:
        return rng.choice(("nano-s", "nano-m"))
    weak, strong = sorted(scores, key=scores.__getitem__)
    return strong if rng.random() < 0.9 else weak


def _reward(rng: random.Random, *, sound: bool) -> str:
    if sound:
        return rng.choice(SOUND if rng.random() < 0.7 else WEAK)
    return rng.choice(rng.choices((FLAT, RAISES, TEXT, BROKEN), (0.35, 0.25, 0.15, 0.25))[0])


def _other_name(rng: random.Random, given: str) -> str:
    """A name copied wrongly: another one, a part of it, or a misspelling."""
    words = given.split("_")
    wrong = [invent_name(rng), invent_name(rng), given + "s", f"{words[0]}_{rng.choice(NAMES)}"]
    if len(words) > 1:
        wrong += [words[0], words[1], "_".join(reversed(words))]
    return rng.choice([name for name in wrong if name != given])


def _pick(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(tuple(weights), tuple(weights.values()))[0]
