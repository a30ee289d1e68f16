"""A pilot of a few seconds, to be killed: the real parts, and an agent that always ends with a job that trains.

python pilot.py OUT
"""

from __future__ import annotations

import sys

from attrs import frozen

import nested_rl as nrl
from nested_rl.compute.local import LocalCompute
from nested_rl.harness.agent import ToolHarness

JOB = """\
[model]
base = "nano-m"
[training]
steps = 8
learning_rate = 1e-3
batch_size = 64
group_size = 8
"""
ENVIRONMENT = """\
from nested_rl.jobkit import make, parse
# of agent {seed}
def examples(rng, n):
    return make("{family}", rng, n, k=1)
def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""


@frozen(kw_only=True)
class Sure(ToolHarness):
    """The agent talks as ever; when nothing that it handed in was accepted, a small sound job of its own is."""

    async def run(self, task, policy, desk, *, seed=0):
        transcript = await super().run(task, policy, desk, seed=seed)
        if transcript.end != "submitted":
            text = ENVIRONMENT.format(family=task.family, seed=seed)
            found = await desk.submit({"job.toml": JOB, "environment.py": text})
            assert found.ok, found
        return transcript


def main(out: str) -> None:
    nrl.Experiment(
        tasks=nrl.tasks.load("calc_chain"),
        harness=Sure(),
        compute=LocalCompute(1, usd_per_hour=36.0),
        budget=nrl.Budget(usd=10.0),
    ).run(steps=4, groups_per_step=1, group_size=2, order="index", eval_every=0, seed=5, out=out, quiet=True)


if __name__ == "__main__":
    main(sys.argv[1])
