"""Which questions may be used where, and that evaluations depend on their arguments alone."""

import hashlib
import random

import pytest

from nested_rl import tasks
from nested_rl.errors import SettingsError

FAMILIES = [f.at(scale) for f in tasks.load() for scale in ("nano", "full")]
IDS = [f"{f.name}-{f.scale}" for f in FAMILIES]


def task(family):
    return next(family.tasks())


def test_the_bucket_is_the_public_rule():
    for name, key in [("ledger", "lb03t1b3"), ("x", ""), ("multi_hop", "ünï")]:
        assert tasks.bucket(name, key) == hashlib.sha256(f"{name}:{key}".encode()).digest()[0] % 8


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_training_examples_are_never_held_out_and_read_back(family):
    items = family.examples(random.Random(3), 1500, family.card.level.k)
    assert len({item.prompt for item in items}) > 300
    for item in items:
        assert tasks.bucket(family.name, item.key) >= 2
        assert family.key(item.prompt) == item.key
        assert family.grade(item, f">{item.answer}" if family.scale == "nano" else item.answer).correct


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_an_evaluation_has_unique_items_of_its_bucket_only(family):
    hidden, dev = (family.eval_set(task(family), split, salt="s") for split in ("hidden", "dev"))
    assert len({i.key for i in hidden.items}) == len({i.key for i in dev.items}) == 256
    assert {tasks.bucket(family.name, i.key) for i in hidden.items} == {0}
    assert {tasks.bucket(family.name, i.key) for i in dev.items} == {1}
    assert all(family.key(i.prompt) == i.key for i in hidden.items)
    if family.scale == "nano":
        assert (hidden.sampling.temperature, hidden.sampling.samples, hidden.baseline_sampling.samples) == (1.0, 1, 4)
        assert hidden.sampling.max_tokens == 16
    else:
        assert (hidden.sampling.temperature, hidden.sampling.samples, hidden.baseline_sampling.samples) == (0.0, 1, 1)
        assert hidden.sampling.max_tokens > 16


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_an_evaluation_depends_on_its_arguments_alone(family):
    some = family.eval_set(task(family), "hidden", salt="s", n=32)
    random.seed(5)
    family.examples(random.Random(9), 10)
    other_task = next(family.tasks("test", seed=8))
    assert other_task.id != task(family).id
    fresh = type(family)(family.card)
    assert fresh.eval_set(other_task, "hidden", salt="s", n=32) == some
    others = [
        family.eval_set(task(family), "hidden", salt="t", n=32),
        family.eval_set(task(family), "dev", salt="s", n=32),
        family.eval_set(task(family), "hidden", salt="s", n=33),
        family.eval_set(
            task(family.at(family.scale, difficulty=3 if family.difficulty != 3 else 2)), "hidden", salt="s", n=32
        ),
    ]
    assert len({some.digest, *(o.digest for o in others)}) == 5
    assert all(item.answer not in repr(some) for item in some.items if len(item.answer) > 3)


def test_a_task_of_another_family_is_refused():
    ledger, calc = tasks.load("ledger", "calc_chain", scale="nano")
    with pytest.raises(SettingsError, match="is of family 'calc_chain', not 'ledger'"):
        ledger.eval_set(task(calc), "hidden", salt="s")


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_every_wording_leads_back_to_one_key(family):
    rng = random.Random(4)
    for _ in range(40):
        program = family.sample(rng, family.difficulty)
        texts = {family.question(program, rng) for _ in range(12)}
        assert len(texts) >= (1 if family.scale == "nano" else 2)
        for text in texts:
            assert family.key(text) == family.spell(program)
            assert family.key(text.replace(" ", "\n ")) == family.spell(program)
            if family.scale == "full":  # text around the question, and shouting, change nothing
                assert family.key(f"Hello! {text.upper()} Think first.") == family.spell(program)


def test_the_word_lists_of_other_families_are_not_recognised():
    for asked in FAMILIES:
        prompts = [i.prompt for i in asked.examples(random.Random(1), 20)]
        for family in FAMILIES:
            if family.name != asked.name:
                assert [family.key(p) for p in prompts] == [None] * 20


@pytest.mark.parametrize(
    "text",
    ["", "?", "c", "what is 2 + 2?", "c8", "c8+", "9" * 5000, "c" + "8" * 5000, "Start with " + "9" * 5000 + ". Add 1. What is the result?",
     "Start with 3. Fly 4. What is the result?", "\x00", "ü" * 300, "{steps}", "a " * 5000, "From A go to " * 2000, "the mentor of " * 3000],
)  # fmt: skip
def test_other_texts_have_no_key(text):
    assert [f.key(text) for f in FAMILIES] == [None] * len(FAMILIES)


def test_the_stated_spaces_of_the_nano_scale():
    product = {"calc_chain": 10 * 12**3, "multi_hop": 16 * 8**3, "string_pipeline": 8**4 * 4**2,
               "ledger": 2 * 100 * 15**2, "dispatch": 8 * 100**3, "triage": 8 * 10**3}  # fmt: skip
    for family in tasks.load(scale="nano"):
        assert family.card.nano.space == f"{product[family.name]:,} questions at k = {family.difficulty}"
        if product[family.name] < 20_000:
            rng = random.Random(0)
            seen = {family.spell(family.sample(rng, family.difficulty)) for _ in range(8 * product[family.name])}
            assert 0.97 * product[family.name] < len(seen) <= product[family.name]
