"""Every word the harness says to an agent with a small context, in one file.

The nano agent was pre-trained on exactly these texts: `nested_rl.nano` stores this file's hash with its weights, and a test
fails when they differ ("run `nested-rl models build`"). Full-size agents get the long messages of `Problem` instead.
"""

from __future__ import annotations

OK = "ok"
VALID = "valid"
ERROR = "error: {brief}"
FILES = "files {names}"
ACCURACY = "accuracy {scores}"
BAD_CALL = "error: bad call"
NO_FILE = "error: no {name}"
NOT_FOUND = "error: text not found"
NOT_UNIQUE = "error: text not unique"
TOO_BIG = "error: too big"
BAD_PATH = "error: bad path"
README = "job.toml needs base steps learning_rate and environment.py needs examples and reward"

BRIEF_LIMIT = 40
"""`Problem.brief` is never longer than this many characters."""


def task(name: str, difficulty: int) -> str:
    """The whole prompt of a nano agent.

    >>> task("calc_chain", 3)
    'task calc_chain k 3'
    """
    return f"task {name} k {difficulty}"


def accuracy(scores: dict[str, float]) -> str:
    """Untrained scores on the dev split, two decimals, the best first: very small agents cannot compare numbers.

    >>> accuracy({"nano-s": 0.26, "nano-m": 0.71})
    'accuracy nano-m 0.71 nano-s 0.26'
    """
    best_first = sorted(scores.items(), key=lambda item: -item[1])
    return ACCURACY.format(scores=" ".join(f"{name} {value:.2f}" for name, value in best_first))


def brief(text: str) -> str:
    """Cut to what fits.

    >>> len(brief("x" * 99))
    40
    """
    return text[:BRIEF_LIMIT]


BRIEF: dict[str, str] = {
    # the folder
    "files.missing": "no {name}",
    "files.unknown": "file {name} not allowed",
    "files.size": "{name} too big",
    "files.count": "too many files",
    "files.text": "{name} is not text",
    "files.rows": "{name} is not jsonl",
    # job.toml
    "job.syntax": "job.toml syntax",
    "job.table": "unknown table {name}",
    "job.key": "unknown key {name}",
    "job.place": "{name} belongs in [{table}]",
    "job.missing": "no {name}",
    "job.value": "bad value {name}",
    "job.base": "unknown base {name}",
    # environment.py as it is written
    "environment.syntax": "environment.py syntax",
    "environment.missing": "environment.py has no {name}",
    "environment.arguments": "{name} needs {arguments}",
    "environment.async": "{name} must not be async",
    "environment.import": "import {name} not allowed",
    "environment.name": "{name} not allowed",
    "environment.number": "number too big",
    # environment.py as it runs
    "environment.raised": "environment.py raised {type}",
    "environment.slow": "environment.py too slow",
    "environment.ended": "environment.py ended early",
    "examples.raised": "examples raised {type}",
    "examples.family": "unknown family {name}",
    "examples.slow": "examples too slow",
    "examples.ended": "examples ended early",
    "examples.row": "row needs prompt and answer",
    "examples.count": "examples gave too few rows",
    "examples.prompt": "bad prompt",
    "examples.answer": "bad answer",
    "examples.same": "examples all the same",
    "examples.random": "examples not repeatable",
    "examples.held_out": "prompts are held out",
    "reward.raised": "reward raised {type}",
    "reward.slow": "reward too slow",
    "reward.ended": "reward ended early",
    "reward.number": "reward must be a number",
    "reward.large": "reward too large",
    "reward.flat": "reward is flat",
    "reward.inverted": "reward is inverted",
    "reward.junk": "junk earns more than the answer",
    "reward.random": "reward not repeatable",
}
"""What a small agent reads of a `Problem`, by its code. Every code of `nested_rl.jobs` is here."""
