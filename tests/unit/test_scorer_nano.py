"""NanoScorer: prompts go out, answers stay; and the sampling server behind it, for real."""

import asyncio
import json
import random

import attrs
import numpy as np
import pytest
import pytest_asyncio

from nested_rl import tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import InfraFault, MachineLost, SettingsError, UnknownName
from nested_rl.inner.nano_job import write
from nested_rl.interfaces import TaskFamily
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.nano.serve import Sampler
from nested_rl.scorers.nano import ARGV, KEY, NanoScorer
from nested_rl.types import Checkpoint, EvalSet, Grade, Item, Need, Sampling

(FAMILY,) = tasks.load("calc_chain", scale="nano")
TASK = next(FAMILY.tasks())
EVAL = FAMILY.eval_set(TASK, "hidden", salt="test", n=48)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine():
    compute = LocalCompute(max_machines=1)
    async with compute.machine(Need()) as lent:
        yield lent
    await compute.close()


class Pretender:
    """A machine whose sampling server says what a test wants, and which remembers what it was asked."""

    id = "pretender"

    def __init__(self, answer):
        self.answer, self.asked, self.killed = answer, [], False

    async def resident(self, key, argv, *, env=None):
        return self

    async def write(self, data):
        self.asked.append(json.loads(data))

    async def readline(self):
        said = self.answer(self.asked[-1])
        return (
            said if isinstance(said, bytes) else json.dumps({"nonce": self.asked[-1]["nonce"], **said}).encode() + b"\n"
        )

    async def kill(self):
        self.killed = True


def items(*pairs):
    return tuple(Item(prompt=prompt, answer=answer, key=prompt[:-1]) for prompt, answer in pairs)


async def test_the_same_seed_gives_the_same_score(machine):
    scorer = NanoScorer()
    first, again, other = [await scorer.score("nano-s", EVAL, machine, seed=seed) for seed in (1, 1, 2)]
    assert first.items == again.items
    assert first.items != other.items
    assert first.n == len(first.items) == 48
    assert 0.1 < first.value < 0.95
    assert set(first.items) <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert len({*first.items}) > 2
    assert first.tokens > 48 * 4 * 3


async def test_a_checkpoint_is_scored_with_its_own_weights_and_sampling(machine, tmp_path):
    model, tokenizer = load_model(weights_path("nano-s"))
    scorer = NanoScorer()
    same = write(tmp_path / "same", model, tokenizer, "nano-s")
    kept = await scorer.score(Checkpoint(path=str(tmp_path / "same"), base="nano-s", digest=same), EVAL, machine)
    one = attrs.evolve(EVAL, baseline_sampling=Sampling())
    assert kept.items == (await scorer.score("nano-s", one, machine)).items
    model.theta[:] = 0
    broken = write(tmp_path / "zero", model, tokenizer, "nano-s")
    zero = await scorer.score(Checkpoint(path=str(tmp_path / "zero"), base="nano-s", digest=broken), EVAL, machine)
    assert zero.value == 0.0
    assert zero.truncated > 24
    assert (await scorer.score("nano-s", one, machine)).items == kept.items


async def test_a_checkpoint_that_is_not_what_training_wrote_is_our_fault(machine, tmp_path):
    model, tokenizer = load_model(weights_path("nano-s"))
    digest = write(tmp_path / "a", model, tokenizer, "nano-s")
    model.theta[0] += 1
    write(tmp_path / "b", model, tokenizer, "nano-s")
    model.theta[0] = np.nan
    damaged = write(tmp_path / "c", model, tokenizer, "nano-s")
    for path, expected, words in [("b", digest, "sha256"), ("c", damaged, "not finite"), ("d", digest, "d/model")]:
        checkpoint = Checkpoint(path=str(tmp_path / path), base="nano-s", digest=expected)
        with pytest.raises(InfraFault, match=words):
            await NanoScorer().score(checkpoint, EVAL, machine)


async def test_what_cannot_be_asked_is_refused_in_words(machine):
    with pytest.raises(SettingsError, match="did you mean 'nano-s'"):
        await NanoScorer().score("nano-ss", EVAL, machine)
    odd = EvalSet(family="calc_chain", difficulty=1, split="hidden", digest="", items=items(("1€2?", "3")))
    with pytest.raises(SettingsError, match="'€'"):
        await NanoScorer().score("nano-s", odd, machine)
    with pytest.raises(UnknownName, match="calc_chain"):
        await NanoScorer().score(
            "nano-s", EvalSet(family="calc_chan", difficulty=1, split="dev", digest="", items=()), machine
        )


async def test_a_server_that_dies_is_a_lost_machine_and_the_next_score_starts_another(machine):
    scorer = NanoScorer()
    before = await scorer.score("nano-s", EVAL, machine)
    server = await machine.resident(KEY, ARGV)
    await server.kill()
    after = await scorer.score("nano-s", EVAL, machine)
    assert before.items == after.items


async def test_only_prompts_leave_and_grades_are_in_item_order():
    asked = items(("c1+1?", "2"), ("c1+2?", "3"), ("c1+3?", "4"))
    eval_set = EvalSet(
        family="calc_chain",
        difficulty=1,
        split="hidden",
        digest="x",
        items=asked,
        baseline_sampling=Sampling(samples=2),
    )
    said = ["11>2.", "2>9.", "3>3.", ">3", ">5.", ""]
    ended = [True, True, True, False, True, True]
    machine = Pretender(lambda q: {"completions": said, "finished": ended, "tokens": 21})
    score = await NanoScorer().score("nano-m", eval_set, machine, seed=7)
    assert score.items == (0.5, 0.5, 0.0)  # a right answer that was cut off is wrong
    assert (score.tokens, score.truncated, score.n) == (21, 1, 3)
    (question,) = machine.asked
    assert question.pop("nonce")
    assert question == {
        "base": "nano-m",
        "prompts": ["c1+1?", "c1+2?", "c1+3?"],
        "samples": 2,
        "temperature": 1.0,
        "max_tokens": 16,
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (lambda q: b"", MachineLost),
        (lambda q: b'{"nonce": "cut o', MachineLost),
        (lambda q: b"hello\n", MachineLost),
        (lambda q: {"nonce": "another", "completions": []}, MachineLost),
        (lambda q: {"completions": ["1>1."], "finished": [True], "tokens": 1}, InfraFault),
        (lambda q: {"error": "OSError: disk full"}, InfraFault),
    ],
)
async def test_a_server_that_answers_wrongly_is_our_fault(answer, fault):
    machine = Pretender(answer)
    with pytest.raises(fault) as caught:
        await NanoScorer().score("nano-m", EVAL, machine)
    assert type(caught.value) is fault
    assert machine.killed == (fault is MachineLost)


async def test_a_server_that_hangs_is_killed():
    class Silent(Pretender):
        async def readline(self):
            await asyncio.Event().wait()

    machine = Silent(None)
    with pytest.raises(InfraFault, match="no answer in"):
        await NanoScorer(wall_s=0.05).score("nano-m", EVAL, machine)
    assert machine.killed


class Shout(TaskFamily):
    """Right answers are in capitals."""

    name = "shout"

    def tasks(self, split="train", *, seed=0):
        raise NotImplementedError

    def key(self, prompt):
        return prompt

    def eval_set(self, task, split, *, salt, n=256):
        return EvalSet(
            family="shout",
            difficulty=1,
            split=split,
            digest="",
            items=items(("a?", "b"), ("b?", "c")),
            baseline_sampling=Sampling(),
        )

    def grade(self, item, text):
        return Grade(correct=text == item.answer.upper())


async def test_families_of_ones_own_are_graded_by_their_own_rule():
    scorer = NanoScorer()
    scorer.bind([Shout()])
    machine = Pretender(lambda q: {"completions": ["B", "c"], "finished": [True, True], "tokens": 2})
    assert (await scorer.score("nano-s", Shout().eval_set(None, "dev", salt=""), machine)).items == (1.0, 0.0)


async def test_a_full_scale_family_is_graded_at_nano_scale():
    scorer = NanoScorer(tasks.load("calc_chain", scale="full"))
    machine = Pretender(lambda q: {"completions": ["1>2."], "finished": [True], "tokens": 4})
    one = EvalSet(
        family="calc_chain",
        difficulty=1,
        split="dev",
        digest="",
        items=items(("c1+1?", "2")),
        baseline_sampling=Sampling(),
    )
    assert (await scorer.score("nano-s", one, machine)).value == 1.0


async def test_what_a_prompt_samples_does_not_depend_on_the_others():
    prompts = [item.prompt for item in FAMILY.examples(random.Random(0), 1100)]
    question = {"base": "nano-s", "samples": 1, "temperature": 1.0, "max_tokens": 16, "seed": 3}
    sampler = Sampler()
    many = sampler.answer({**question, "prompts": prompts})["completions"]
    few = sampler.answer({**question, "prompts": prompts[:40]})["completions"]
    assert many[:40] == few
    assert len(many) == 1100
