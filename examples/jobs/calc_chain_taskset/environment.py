"""The same questions as calc_chain, as a verifiers taskset with two rewards and a setting for the length of chains."""

import random
import re

import verifiers.v1 as vf

__all__ = ["Chains"]

END = "Reply with the number alone on the last line."
WORDS = (
    (
        "Start with {start}. {steps} What is the result?",
        {"+": "Add {x}.", "-": "Subtract {x}.", "*": "Multiply by {x}."},
    ),
    (
        "A counter shows {start}. In this order, it is {steps} in the end. What does it show?",
        {"+": "raised by {x},", "-": "lowered by {x},", "*": "multiplied by {x},"},
    ),
    (
        "Work strictly from left to right, ignoring precedence: {start} {steps} = ?",
        {"+": "+ {x}", "-": "- {x}", "*": "* {x}"},
    ),
)


class Chain(vf.TaskData):
    answer: str


class Question(vf.Task[Chain]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        return float(last_line(trace) == self.data.answer)

    @vf.reward(weight=0.1)
    async def number(self, trace: vf.Trace) -> float:
        return float(re.fullmatch(r"-?[0-9]{1,12}", last_line(trace)) is not None)


def last_line(trace):
    lines = [line for line in (trace.last_reply or "").splitlines() if line.strip()]
    return lines[-1].replace(",", "").replace("\N{MINUS SIGN}", "-").strip(" .*`$") if lines else ""


class Settings(vf.TasksetConfig):
    rows: int = 512
    shortest: int = 3
    longest: int = 4
    seed: int = 0


class Chains(vf.Taskset[Question, Settings]):
    def load(self) -> list[Question]:
        rng = random.Random(self.config.seed)
        return [self.question(rng, i) for i in range(self.config.rows)]

    def question(self, rng: random.Random, number: int) -> Question:
        frame, words = rng.choice(WORDS)
        start = value = rng.randint(11, 99)
        steps = []
        for _ in range(rng.randint(self.config.shortest, self.config.longest)):
            op = rng.choice("+-*")
            x = rng.randint(2, 9) if op == "*" else rng.randint(11, 99)
            value = value + x if op == "+" else value - x if op == "-" else value * x
            steps.append(words[op].format(x=x))
        text = frame.format(start=start, steps=" ".join(steps))
        return Question(Chain(idx=number, prompt=f"{text} {END}", answer=str(value)), self.config.task)
