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
    """Untrained scores on the dev split, two decimals.

    >>> accuracy({"nano-s": 0.26, "nano-m": 0.71})
    'accuracy nano-s 0.26 nano-m 0.71'
    """
    return ACCURACY.format(scores=" ".join(f"{name} {value:.2f}" for name, value in scores.items()))


def brief(text: str) -> str:
    """Cut to what fits.

    >>> len(brief("x" * 99))
    40
    """
    return text[:BRIEF_LIMIT]
