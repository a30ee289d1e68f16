"""The code of a task family is tried before a run begins, and later on cannot hide an episode."""

from __future__ import annotations

import asyncio
import logging

import pytest
from loop_doubles import Family as _Family
from loop_doubles import Rig
from supervised import World

from nested_rl import alarms, soundness, tasks
from nested_rl.errors import SettingsError
from nested_rl.jobs.probe import probe
from nested_rl.jobs.sandbox import Zygote
from nested_rl.scorers.nano import NanoScorer
from nested_rl.types import EvalSet, Grade, Item, Validation

ITEMS = tuple(Item(prompt=f"{i}+1?", answer=str(i + 1), key=f"{i}+1") for i in range(4))
SET = EvalSet(family="sums", difficulty=1, split="hidden", items=ITEMS, digest="d")


class Sums:
    """Reads `A+1?`; grades by the number."""

    name = "sums"

    def key(self, prompt):
        return prompt[:-1] if prompt[:-3].isdecimal() and prompt.isascii() and prompt.endswith("+1?") else None

    def grade(self, item, text):
        return Grade(correct=text.strip() == item.answer)


def test_a_sound_family_passes():
    soundness.check(Sums(), [SET])


@pytest.mark.parametrize("family", tasks.load(scale="nano"), ids=lambda family: family.name)
def test_the_built_in_ones_pass_on_other_items_too(family):
    task = next(family.tasks())
    soundness.check(family, [family.eval_set(task, split, salt="other", n=32) for split in ("hidden", "dev")])


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            lambda self, prompt: str(int(prompt.split("+")[0])) + "+1",
            r"key\('\d?\+?1?\??'\)|key\('.*'\) raised ValueError",
        ),
        (
            lambda self, prompt: "always",
            r"key\('0\+1\?'\) gives 'always', but the key of this item of its own is '0\+1'",
        ),
        (lambda self, prompt: None, "could not be kept out of training"),
        (lambda self, prompt: Sums.key(self, prompt) or 0, r"gives 0, which is no text and not None"),
    ],
    ids=["raises", "constant", "unknown", "number"],
)
def test_a_key_that_does_not_hold_is_refused(key, told):
    family = type("Family", (Sums,), {"key": key})()
    with pytest.raises(SettingsError, match=told):
        soundness.check(family, [SET])


@pytest.mark.parametrize(
    ("grade", "told"),
    [
        (
            lambda self, item, text: Grade(correct=int(text) == int(item.answer)),
            r"grade\(item '0\+1', ''\) raised ValueError",
        ),
        (lambda self, item, text: Grade(correct=text and "yes"), "neither True nor False"),
        (lambda self, item, text: None, "raised AttributeError"),
    ],
    ids=["raises", "text", "nothing"],
)
def test_a_grade_that_does_not_hold_is_refused(grade, told):
    family = type("Family", (Sums,), {"grade": grade})()
    with pytest.raises(SettingsError, match=told):
        soundness.check(family, [SET])


def test_a_run_with_such_a_family_ends_before_anything_is_measured(tmp_path):
    world = World(tmp_path / "run")
    world.experiment.tasks[0].key = lambda prompt: str(int(prompt))
    world.trap.set("baselines", lambda: pytest.fail("measured all the same"))
    with pytest.raises(SettingsError, match=r"family fast: key\('.*'\) raised ValueError.*must take any text"):
        world.run()
    world.assert_all_given_back()


# ---------------------------------------------------------------- what the trial did not find


class Sly(Sums):
    """Fails on a text that nobody tried."""

    def key(self, prompt):
        if prompt.startswith("boo"):
            raise RuntimeError("never seen before")
        return super().key(prompt)

    def grade(self, item, text):
        if text.startswith("boo"):
            raise RuntimeError("never seen before")
        return super().grade(item, text)


ENVIRONMENT = """
def examples(rng, n):
    return [{"prompt": f"boo{rng.randrange(10**6)}", "answer": str(i % 7)} for i in range(n)]

def reward(prompt, completion, answer):
    return float(completion.strip(">.") == answer)
"""


def test_a_prompt_on_which_key_raises_is_no_question_of_the_family_and_is_noted(caplog):
    from nested_rl.inner.nano import NanoInnerTrainer

    rules = NanoInnerTrainer().surface.probe
    with Zygote(kit=False) as zygote, caplog.at_level(logging.WARNING):
        found = probe({"environment.py": ENVIRONMENT}, rules, zygote=zygote, families=[Sly()])
    assert found.families == ()
    assert found.notes[f"{alarms.UNREADABLE}sums"] == rules.rows
    assert "key() of family sums raised on 'boo" in caplog.text


async def test_such_an_episode_scores_and_an_alarm_says_so(tmp_path):
    rig = Rig(tmp_path / "run", steps=1)
    loop = rig.loop()
    inner = loop.parts.inner

    async def validate(draft):
        return Validation(ok=True, base="strong", families=("fast",), notes={f"{alarms.UNREADABLE}fast": 3.0})

    inner.validate = validate
    await rig.go(loop)
    assert not any(episode.masked for episode in rig.run.episodes())
    (alarm,) = rig.run.events("alarm")
    assert alarm["name"] == alarms.FAMILY
    assert "key() of fast raised on a prompt of episode 0000" in alarm["message"]
    assert rig.run.metrics()[0][alarms.COUNT] == 1


async def test_a_completion_on_which_grade_raises_is_wrong(monkeypatch, caplog):
    scorer = NanoScorer([Sly()])

    async def sampled(model, eval_set, machine, seed):
        texts = [text for item in ITEMS for text in (item.answer, "boo", item.answer, "boo!")]
        return {"completions": texts, "finished": [True] * len(texts), "tokens": 9}

    monkeypatch.setattr(scorer, "_sampled", sampled)
    score = await asyncio.wait_for(scorer.score("nano-s", SET, machine=None), 30)
    assert score.items == (0.5, 0.5, 0.5, 0.5)
    assert "counts as wrong" in caplog.text


def test_the_double_is_a_family_that_passes():
    """Or every test with it would test the refusal."""
    family = _Family()
    soundness.check(family, [family.eval_set(next(family.tasks()), "hidden", salt="s")])
