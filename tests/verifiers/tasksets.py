"""Jobs for full scale in both dialects, sound ones, and ways to spoil them."""

from __future__ import annotations

from nested_rl import tasks
from nested_rl.inner.prime_rl.job import surface
from nested_rl.inner.prime_rl.keys.allowed import TABLES
from nested_rl.jobs.folder import JobConfig
from nested_rl.types import Draft

SURFACE = surface(("Qwen/Qwen3-0.6B",))
FAMILIES = tasks.load("calc_chain", "dispatch")
(TASK,) = (family.task(seed=1) for family in FAMILIES if family.name == "calc_chain")

PLAIN = """\
def examples(rng, n):
    rows = []
    for _ in range(n):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        rows.append({"prompt": f"What is {a} + {b}?", "answer": str(a + b)})
    return rows

def reward(prompt, completion, answer):
    return float(completion.split()[-1:] == [answer])
"""

NATIVE = """\
import random
import verifiers.v1 as vf

class Sum(vf.TaskData):
    answer: str

class SumTask(vf.Task[Sum]):
    @vf.stop
    async def once(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").split()[-1:] == [self.data.answer])

class SumConfig(vf.TasksetConfig):
    n: int = 64
    seed: int = 0

class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        rng = random.Random(self.config.seed)
        tasks = []
        for i in range(self.config.n):
            a, b = rng.randint(100, 999), rng.randint(100, 999)
            tasks.append(SumTask(Sum(idx=i, prompt=f"What is {a} + {b}?", answer=str(a + b)), self.config.task))
        return tasks

__all__ = ["SumTaskset"]
"""


def config(**given: dict[str, object]) -> JobConfig:
    """job.toml as it is read: defaults, and what is `given` by table."""
    tables = {name: {key: rule.default for key, rule in keys.items()} for name, keys in TABLES.items()}
    tables["training"] |= {"steps": 10, "learning_rate": 5e-5}
    tables["prime_rl"] = {}
    tables = {name: {**table, **given.get(name, {})} for name, table in tables.items()}
    return JobConfig(base=SURFACE.bases[0], tables=tables)


def draft(code: str, **data: str) -> Draft:
    return Draft(task=TASK, files={"job.toml": "", "environment.py": code, **data})


def rewarding(code: str, *lines: str) -> str:
    """The same environment with another body of its reward."""
    plain = code is PLAIN
    body = next(line for line in code.splitlines() if "float(" in line)
    return code.replace(body, "\n".join(("    " if plain else "        ") + line for line in lines))


def giving(code: str, *lines: str) -> str:
    """The same environment with another body of what gives its rows."""
    start, end = ("def examples(rng, n):\n", "\ndef reward") if code is PLAIN else ("def load(self):\n", "\n__all__")
    head, _, rest = code.partition(start)
    indent = "    " if code is PLAIN else "        "
    return head + start + "".join(f"{indent}{line}\n" for line in lines) + end + rest.partition(end)[2]
