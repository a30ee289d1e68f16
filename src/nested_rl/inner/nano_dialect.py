"""What a nano job may say, and the guide that tells an agent so. The guide is made from the keys: it cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nested_rl.jobs.folder import CODE, JOB
from nested_rl.jobs.surface import FileRules, Key, ProbeRules, Surface

_MAX_TOKENS = 16

TABLES: Mapping[str, Mapping[str, Key]] = {
    "training": {
        "steps": Key(type=int, low=1, high=40),
        "learning_rate": Key(type=float, low=1e-7, high=0.1),
        "batch_size": Key(type=int, low=16, high=256, default=128),
        "group_size": Key(type=int, low=2, high=16, default=8, hint="advantages are taken within a group: use 4 to 16"),
    },
    "rollout": {
        "temperature": Key(type=float, low=0.05, high=2.0, default=1.0),
        "max_tokens": Key(type=int, low=1, high=_MAX_TOKENS, default=_MAX_TOKENS),
    },
    "nano": {
        "epochs": Key(type=int, low=1, high=4, default=1),
        "clip": Key(type=float, low=0.01, high=10.0, default=0.2),
        "kl": Key(type=float, low=0.0, high=1.0, default=0.0),
        "std_normalize": Key(type=bool, default=True),
        "weight_decay": Key(type=float, low=0.0, high=1.0, default=0.0),
        "beta2": Key(type=float, low=0.5, high=0.9999, default=0.95),
        "grad_clip": Key(type=float, low=0.001, high=100.0, default=1.0),
        "lora_rank": Key(type=int, low=0, high=16, default=0),
    },
}
"""The keys of job.toml, besides [model] base. [nano] is for experts and counted."""

MEANING: Mapping[str, str] = {
    "steps": "optimiser steps on fresh samples",
    "learning_rate": "of AdamW",
    "batch_size": "samples a step; a multiple of group_size",
    "group_size": "samples of one prompt; advantages are taken within a group",
    "temperature": "of sampling in training; the evaluation samples at 1",
    "max_tokens": "characters of one completion at most",
    "epochs": "optimiser steps on the same samples",
    "clip": "how far a token's probability may move, as a ratio, before it adds nothing (matters from 2 epochs on)",
    "kl": "weight of the distance to the untrained base",
    "std_normalize": "divide advantages by their standard deviation in the group",
    "weight_decay": "of AdamW",
    "beta2": "of AdamW",
    "grad_clip": "norm that gradients are scaled down to",
    "lora_rank": "train an adapter of this rank instead of all weights; 0 trains all weights",
}

EXAMPLE: Mapping[str, str] = {
    "job.toml": """\
[model]
base = "{base}"

[training]
steps = 10
learning_rate = 1e-4
""",
    "environment.py": """\
from nested_rl.jobkit import parse

def examples(rng, n):
    rows = []
    for _ in range(n):
        a, b = rng.randint(0, 4), rng.randint(0, 5)
        rows.append({"prompt": f"{a}+{b}?", "answer": str(a + b)})
    return rows

def reward(prompt, completion, answer):
    return 1.0 if parse(completion) == answer else 0.0
""",
}
"""A small valid job, shown in the guide. It asks questions of no family."""

_GUIDE = """\
You write a reinforcement-learning job: two files that train one of the small models ({bases}) with GRPO.
Each step draws prompts from your `examples`, samples a group of completions of each, scores them with your `reward`, and
moves the model towards those above their group's mean. The trained model is then asked hidden questions of your task.
What counts is how much better it answers than the best untrained model, and whether your job is valid at the first try.

job.toml
{keys}
environment.py
  examples(rng, n)                    a list of n rows like {{"prompt": "…", "answer": "…"}}; take all randomness from rng,
                                      a random.Random. A prompt has at most {prompt_chars} characters.
  reward(prompt, completion, answer)  a finite number. It must be higher for a right completion than for a wrong one.
A completion is working, then `>`, the answer and a full stop, as in `72>6.`; models know only these characters:
{letters}
`from nested_rl.jobkit import make, parse` helps: make(family, rng, n, k=None) gives n rows of a family's own questions, with
chains of k operations, a number or a pair (low, high); parse(completion) gives its answer, or "" when there is none. Other
imports: plain parts of the standard library, such as math, re, random, itertools. No files but data/NAME.jsonl (delete
others), no network.
Rows whose question belongs to an evaluation are dropped. A job may use {max_work:.2g} units of work: (sampled + trained
tokens) x parameters. Faster is a little better.

A valid job for another task:
--- job.toml
{job}--- environment.py
{code}"""


def surface(bases: tuple[str, ...], *, letters: frozenset[str], context: int) -> Surface:
    """Everything that a nano job may say, for models that know `letters` and read `context` tokens, one a character."""
    return Surface(
        tables=TABLES,
        bases=bases,
        advanced=frozenset({"nano"}),
        kit=frozenset({"make", "parse"}),
        files=FileRules(data_files=4, data_bytes=262_144),
        probe=ProbeRules(
            prompt_chars=context - _MAX_TOKENS,
            answer_chars=_MAX_TOKENS - 2,
            letters=letters,
            answer_forms=(">{answer}.", "1>{answer}."),
            reply_chars=_MAX_TOKENS,
        ),
    )


def guide(allowed: Surface, *, max_work: float) -> str:
    """The whole dialect, with a short valid job."""
    letters = allowed.probe.letters or frozenset()
    return _GUIDE.format(
        bases=", ".join(allowed.bases),
        keys="".join(_keys(allowed)),
        prompt_chars=allowed.probe.prompt_chars,
        letters=" ".join(sorted(letter for letter in letters if letter.isprintable() and letter != " ")),
        max_work=max_work,
        job=EXAMPLE[JOB].format(base=allowed.bases[0]),
        code=EXAMPLE[CODE],
    )


def _keys(allowed: Surface) -> Iterator[str]:
    for table, keys in allowed.keys.items():
        counted = "  optional, for experts" if table in allowed.advanced else ""
        yield f"  [{table}]{counted}\n"
        for name, key in keys.items():
            if (table, name) == ("model", "base"):
                yield f"    base = one of {', '.join(map(repr, allowed.bases))} (required)\n"
                continue
            default = "required" if key.required else f"default {str(key.default).lower()}"
            yield f"    {name} = {key.wants} ({default}): {MEANING[name]}\n"
