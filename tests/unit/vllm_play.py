"""What the tests of VLLMScorer share: a family whose answer is its prompt, and a scorer whose server is a stand-in."""

import json
import sys
from pathlib import Path

from nested_rl.interfaces import TaskFamily
from nested_rl.scorers import VLLMEngine, VLLMScorer
from nested_rl.types import EvalSet, Grade, Item, Sampling

STANDIN = Path(__file__).with_name("vllm_standin.py")


class Echo(TaskFamily):
    name = "echo"

    def tasks(self, split="train", *, seed=0):
        return iter(())

    def key(self, prompt):
        return prompt

    def eval_set(self, task, split, *, salt, n=256):
        return evaluation(n)

    def grade(self, item, text):
        return Grade(correct=text == item.answer)


def evaluation(n=12, *, answer=None, samples=4):
    items = tuple(Item(prompt=f"item {i}", answer=answer or f"item {i}", key=f"{i}") for i in range(n))
    return EvalSet(
        family="echo",
        difficulty=1,
        split="hidden",
        items=items,
        digest=f"echo-{n}",
        sampling=Sampling(temperature=0.0, max_tokens=8),
        baseline_sampling=Sampling(temperature=1.0, max_tokens=8, samples=samples),
    )


class Standin:
    """A scorer whose server is a stand-in with a fault, and what that server noted."""

    def __init__(self, log, fault="none", **settings):
        self.log = log
        engine = VLLMEngine(python=sys.executable, argv=(sys.executable, str(STANDIN), str(log), fault), max_num_seqs=8)
        self.scorer = VLLMScorer(
            [Echo()], engine=engine, **{"start_s": 30.0, "wall_s": 30.0, "retry_s": 0.3, **settings}
        )

    def notes(self, kind):
        rows = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        return [row[kind] if kind == "body" else row for row in rows if kind in row]
