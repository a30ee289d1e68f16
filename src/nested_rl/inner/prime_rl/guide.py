"""What an agent reads about full-scale jobs. The keys are listed from the rules that check them: the guide cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nested_rl.inner.prime_rl.keys.allowed import ARGUMENTS, KINDS, MEANING, OPEN, TABLES, Rule
from nested_rl.jobs.folder import CODE, JOB
from nested_rl.jobs.surface import Surface

PLAIN: Final[Mapping[str, str]] = {
    JOB: """\
[model]
base = "{base}"

[training]
steps = 40
learning_rate = 5e-5
lora_rank = 16

[rollout]
max_tokens = 256
""",
    CODE: """\
import re

def examples(rng, n):
    rows = []
    for _ in range(n):
        a, b = rng.randint(11, 99), rng.randint(11, 99)
        text = f"A shelf has {a} books and {b} more arrive. How many are there? End with the number on a line of its own."
        rows.append({"prompt": text, "answer": str(a + b)})
    return rows

def reward(prompt, completion, answer):
    lines = completion.strip().splitlines()
    last = lines[-1].strip(" .*") if lines else ""
    if last == answer:
        return 1.0
    return 0.1 if re.fullmatch(r"-?[0-9]{1,12}", last) else 0.0
""",
}
"""A small valid job in the plain dialect. It asks questions of no family."""

NATIVE: Final[Mapping[str, str]] = {
    JOB: """\
[model]
base = "{base}"

[training]
steps = 40
learning_rate = 5e-5

[rollout]
max_tokens = 256

[prime_rl.trainer.scheduler]
type = "cosine"
warmup_steps = 4

[prime_rl.orchestrator.train.source.env.taskset]
rows = 640
""",
    CODE: """\
import random

import verifiers.v1 as vf

__all__ = ["Shelves"]


class Shelf(vf.TaskData):
    answer: str


class Question(vf.Task[Shelf]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        lines = (trace.last_reply or "").strip().splitlines()
        return float(bool(lines) and lines[-1].strip(" .*") == self.data.answer)


class Settings(vf.TasksetConfig):
    rows: int = 512
    seed: int = 0


class Shelves(vf.Taskset[Question, Settings]):
    def load(self) -> list[Question]:
        rng = random.Random(self.config.seed)
        made = []
        for i in range(self.config.rows):
            a, b = rng.randint(11, 99), rng.randint(11, 99)
            text = f"A shelf has {a} books and {b} more arrive. How many are there? End with the number on a line of its own."
            made.append(Question(Shelf(idx=i, prompt=text, answer=str(a + b)), self.config.task))
        return made
""",
}
"""The same as a verifiers taskset."""

_FULL = """\
You write a reinforcement-learning job: two files that train one small language model ({bases}) with GRPO, in prime-rl.
Each step draws prompts, samples a group of completions of each, scores them with your reward, and moves the model towards
those above their group's mean. The trained model is then asked hidden questions of your task, greedily, without a thinking
block, one answer each. What counts is how much better it answers than the best untrained model, and whether your job is valid at
the first try.

job.toml
{tables}
  [prime_rl]  optional, for experts: prime-rl's own keys, as dotted names or nested tables. These and no others:
{keys}

{machines}environment.py. You write generator and grader yourself; imports are the plain parts of the standard library (math, re, random,
itertools, json and the like). No network, no programs, no files but data/NAME.jsonl (delete others). It is two functions{or_native}:
  examples(rng, n)                    a list of n rows like {{"prompt": "…", "answer": "…"}}; take all randomness from rng,
                                      a random.Random. Make many different ones: a batch needs batch_size / group_size.
  reward(prompt, completion, answer)  a finite number, best from 0 to 1. It must be higher for a right completion than for a
                                      wrong one, must not raise for any text, and takes no more than milliseconds.
A reward is tried before training on right and wrong answers, given as {forms}: it must tell them apart in one of these forms, and
no wrong answer, repeated prompt or empty, long or wordy reply may earn as much as the best right one.
Rows whose question belongs to an evaluation are dropped.

{native}Advice. Ask questions as the task asks them, in all its wordings, and say how to end. Let the model reason in a few lines and grade
its last line exactly; a small reward for a well-formed last line helps in the beginning. Choose questions that the base gets
right sometimes: a group in which all are right, or none, teaches nothing. Start with steps = 40, batch_size = 128,
group_size = 8 and learning_rate = 5e-5 for an adapter, 2e-6 for all weights (lora_rank = 0).

A valid job for another task:
--- job.toml
{plain_job}--- environment.py
{plain_code}
"""

_NATIVE = """\
Or it is a verifiers v1 taskset (`import verifiers.v1 as vf`), taken as it is. Export exactly one vf.Taskset in __all__; rewards are
async methods of the vf.Task with parameters named `task` and `trace`, and `trace.last_reply` is what the model said.

"""

_NATIVE_EXAMPLE = """
The same as a taskset:
--- job.toml
{job}--- environment.py
{code}"""

_BRIEF = """\
Write job.toml and environment.py. job.toml: [model] base = one of {bases}; [training] steps, learning_rate (5e-5 for the
adapter that is trained by default), batch_size = 128, group_size = 8. environment.py: examples(rng, n) gives n rows
{{"prompt": ..., "answer": ...}} made with rng; reward(prompt, completion, answer) gives 1.0 when the last line of completion is
the answer, else 0.0. Only the standard library.
"""


def example(dialect: Mapping[str, str], base: str) -> dict[str, str]:
    """The files of one of the two examples, for a base."""
    return {name: text.format(base=base) if name == JOB else text for name, text in dialect.items()}


def full(allowed: Surface, *, native: bool = True, whole: Sequence[str] | None = None) -> str:
    """Everything. `native`: tasksets are accepted too. `whole`: of these bases the machines can train all weights."""
    plain, taskset = (example(dialect, allowed.bases[0]) for dialect in (PLAIN, NATIVE))
    machines = ""
    if whole is not None:
        machines = (
            f"The machines have memory to train all weights (lora_rank = 0) of: {', '.join(whole) or 'none'}.\n\n"
        )
    text = _FULL.format(
        bases=", ".join(allowed.bases),
        tables="\n".join(_tables(allowed)),
        keys="\n".join(_keys(native=native)),
        forms=", ".join(repr(form.format(answer="72")).replace("\\\\", "\\") for form in allowed.probe.answer_forms),
        machines=machines,
        or_native=", or a taskset" if native else "",
        native=_NATIVE if native else "",
        plain_job=plain[JOB],
        plain_code=plain[CODE],
    )
    return text + _NATIVE_EXAMPLE.format(job=taskset[JOB], code=taskset[CODE]) if native else text


def brief(allowed: Surface) -> str:
    """The least, for an agent with a small context."""
    return _BRIEF.format(bases=" or ".join(map(repr, allowed.bases)))


def _tables(allowed: Surface) -> Iterator[str]:
    yield "  [model]"
    yield f"    base = one of {', '.join(map(repr, allowed.bases))} (required)"
    for table, keys in TABLES.items():
        yield f"  [{table}]"
        for name, key in keys.items():
            default = "required" if key.required else f"default {key.default:g}"
            yield f"    {name} = {key.wants} ({default}): {MEANING[name]}"


def _keys(*, native: bool) -> Iterator[str]:
    for path in OPEN:
        for rule, kinds in _rules(path):
            only = f" [{', '.join(kinds)}]" if kinds else ""
            default = rule.default if isinstance(rule.default, str) else str(rule.default).lower()
            value = "" if isinstance(rule.default, tuple) else f" (default {default})"
            yield f"    {path} = {rule.wants}{value}{only}"
    if native:
        yield f"    {ARGUMENTS}.NAME: a field of your own taskset's config class"


def _rules(path: str) -> list[tuple[Rule, list[str]]]:
    """The rules of a key, each with the types whose key it is. Types may give the same key other defaults."""
    found: list[tuple[Rule, list[str]]] = []
    for table, kinds in KINDS.items():
        name = path.removeprefix(f"{table}.")
        for kind, keys in kinds.items():
            if name == path or name not in keys:
                continue
            same = next((of for rule, of in found if rule == keys[name]), None)
            if same is None:
                found.append((keys[name], [kind]))
            else:
                same.append(kind)
    return found or [(OPEN[path], [])]
