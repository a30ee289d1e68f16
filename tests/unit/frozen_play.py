"""What the tests of a large agent share: a job, a clock that counts waits, a policy on the fake server."""

import time

import pytest
from openai_server import Server

from nested_rl.harness.tools import SCHEMAS
from nested_rl.policies import FrozenPolicy
from nested_rl.types import Message, Task

CANARY = "sk-canary-5f1c9a"
TASK = Task(id="t", family="calc_chain", difficulty=3, prompt="Teach calc_chain at k = 3.", brief="task calc_chain k 3")
JOB = """\
[model]
base = "nano-m"
[training]
steps = 4
learning_rate = 1e-3
batch_size = 64
group_size = 8
[rollout]
temperature = 1.0
"""
ENVIRONMENT = """\
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("calc_chain", rng, n, k=(1, 3))

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""
ASK = [Message(role="system", content="Be brief."), Message(role="user", content="Go.")]


class Waits:
    """A clock on which waiting takes no time, and is written down."""

    def __init__(self):
        self.waited = []

    def now(self):
        return 1_000_000.0 + sum(self.waited)

    def monotonic(self):
        return time.monotonic() + sum(self.waited)

    async def sleep(self, seconds):
        self.waited.append(seconds)


async def ask(server, talk=ASK, *, tools=SCHEMAS, max_tokens=50, seed=None, **settings):
    policy = FrozenPolicy("small", base_url=server.url, **settings)
    try:
        return await policy.sample(talk, tools=tools, max_tokens=max_tokens, seed=seed)
    finally:
        await policy.aclose()


async def refused(*answers, **settings):
    with Server(*answers) as server, pytest.raises(Exception) as caught:
        await ask(server, clock=Waits(), **settings)
    assert CANARY not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    return caught.value
