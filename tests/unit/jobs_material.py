"""A surface like that of the nano trainer, sound files, and a way to spoil them."""

from __future__ import annotations

from nested_rl import tasks
from nested_rl.jobs.surface import FileRules, Key, ProbeRules, Surface
from nested_rl.types import Draft

LETTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyzLNRX+-*?>.|<=:;,")

SURFACE = Surface(
    bases=("nano-s", "nano-m"),
    tables={
        "training": {
            "steps": Key(type=int, low=1, high=40),
            "learning_rate": Key(type=float, low=1e-7, high=0.1, hint="try 5e-4"),
            "batch_size": Key(type=int, low=4, high=256, default=128),
            "group_size": Key(type=int, low=1, high=32, default=8),
        },
        "rollout": {
            "temperature": Key(type=float, low=0.05, high=2.0, default=1.0),
            "max_tokens": Key(type=int, low=2, high=48, default=16),
        },
        "nano": {
            "clip": Key(type=float, low=0.01, high=10.0, default=0.2),
            "std_normalize": Key(type=bool, default=True),
        },
    },
    advanced={"nano"},
    kit={"make", "parse"},
    files=FileRules(job_bytes=2_000, code_bytes=4_000),
    probe=ProbeRules(
        prompt_chars=32,
        answer_chars=12,
        letters=LETTERS,
        answer_forms=(">{answer}.", "12>{answer}."),
        reply_chars=16,
    ),
)

WITH_DATA = Surface(
    bases=SURFACE.bases,
    tables=SURFACE.tables,
    files=FileRules(data_files=2, data_bytes=4_000),
    probe=ProbeRules(rows=8, answer_forms=("{answer}",), reply_chars=100),
)
"""Like a full-scale dialect: no kit, data files allowed."""

JOB = """\
[model]
base = "nano-m"

[training]
steps = 25
learning_rate = 5e-4
"""

CODE = """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n)

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""

FAMILIES = tasks.load(scale="nano")


def files(job: str = JOB, code: str = CODE, **more: str) -> dict[str, str]:
    return {"job.toml": job, "environment.py": code, **more}


def draft(job: str = JOB, code: str = CODE, **more: str) -> Draft:
    (task,) = (family.task() for family in FAMILIES if family.name == "calc_chain")
    return Draft(task=task, files=files(job, code, **more))


def rewarding(*lines: str) -> str:
    """CODE with another body of `reward`."""
    return CODE.replace("    return float(parse(completion) == answer)\n", "".join(f"    {line}\n" for line in lines))


def giving(*lines: str) -> str:
    """CODE with another body of `examples`."""
    return CODE.replace('    return make("calc_chain", rng, n)\n', "".join(f"    {line}\n" for line in lines))
