"""Grading: exact, lenient about harmless form, with a reason."""

import random

import pytest

from nested_rl import tasks
from nested_rl.types import Item

FULL = {f.name: f for f in tasks.load()}
NANO = {f.name: f for f in tasks.load(scale="nano")}
ODD = ["", " \n\t", "\x00", "ü🙂漢", "9" * 5000, "-" * 5000, "9" * 5000 + "x1", ">" * 5000, "answer: " * 1000, "<think>" * 900,
       r"\boxed{" * 900, "1," * 2500, "a>b>c", ".", ">.", "Infinity", "nan", "1e999", "٣", "１２"]  # fmt: skip


def item(answer, prompt="?"):
    return Item(prompt=prompt, answer=answer, key="k")


@pytest.mark.parametrize(
    "text",
    ["1204", " 1,204 ", "1204.", "Answer: 1204", "**Answer:** 1,204", "The answer is 1204.", r"\boxed{1204}", "$1204", "1204.0", "+1204",
     "01204", "I add.\n12 + 3\n\n1204\n", "<think>maybe 3</think>\n1204", "900 + 304 = 1204", "So the result is 1204.", "`1204`"],
)  # fmt: skip
def test_harmless_form_is_accepted(text):
    for name in ("calc_chain", "ledger"):
        assert FULL[name].grade(item("1204"), text).correct, text


@pytest.mark.parametrize(
    "text",
    [
        "1203",
        "-1204",
        "12.04",
        "1204.5",
        "1204 or 1205",
        "1204\nno, 7",
        "12 04",
        "one",
        "",
        "1204 and then 7 = 8",
        "<think>1204",
    ],
)
def test_anything_else_is_not(text):
    grade = FULL["calc_chain"].grade(item("1204"), text)
    assert not grade.correct
    assert grade.why


def test_negative_numbers():
    calc = FULL["calc_chain"]
    assert calc.grade(item("-17"), "−17").correct
    assert calc.grade(item("-17"), "Answer: -17.").correct
    assert not calc.grade(item("-17"), "17").correct


def test_names_words_and_pairs():
    assert FULL["multi_hop"].grade(item("Ada"), "She knows Ben.\nAnswer: ADA.").correct
    assert not FULL["multi_hop"].grade(item("Ada"), "Ada or Ben").correct
    assert FULL["dispatch"].grade(item("Amber"), '"amber"').correct
    assert FULL["string_pipeline"].grade(item("dcba"), "Answer: DCBA").correct
    assert not FULL["string_pipeline"].grade(item("dcba"), "dcba abcd").correct
    for text in ("2 storage", "2, storage", "Severity 2, team storage", "**2 Storage**"):
        assert FULL["triage"].grade(item("2 storage"), text).correct, text
    for text in ("2", "storage", "3 storage", "2 storage network", "storage 2"):
        assert not FULL["triage"].grade(item("2 storage"), text).correct, text


@pytest.mark.parametrize(("text", "right"), [("72>6.", True), ("72>6", True), ("7 2 > 6 .", True), (">6.", True), ("72>7.", False), ("6", False),
                                             ("72>6>6.", False), ("72>66.", False), ("", False), ("72>", False), ("72.>6", False)])  # fmt: skip
def test_nano_completions(text, right):
    grade = NANO["calc_chain"].grade(item("6"), text)
    assert grade.correct is right
    assert bool(grade.why) is not right


def test_the_reason_names_the_step_that_was_answered():
    prompt = "Start with 40. Add 20. Multiply by 3. Subtract 11. What is the result?"
    calc = FULL["calc_chain"]
    assert calc.grade(item("169", prompt), "180").why == "the answer after step 2 of 3, not the last"
    assert calc.grade(item("169", prompt), "170").why == "'170' is not the answer"
    assert calc.grade(item("169", prompt), "").why == "empty"
    assert calc.grade(item("169", prompt), "no idea").why == "'no idea' has the wrong form"
    assert NANO["calc_chain"].grade(item("6", "c8-1+5+4?"), "726").why == "no well-formed answer"
    assert NANO["calc_chain"].grade(item("6", "c8-1+5+4?"), ">7.").why == "the answer after step 1 of 3, not the last"


@pytest.mark.parametrize("text", ODD)
def test_odd_answers_are_wrong_and_never_raise(text):
    for family in [*FULL.values(), *NANO.values()]:
        real = family.examples(random.Random(0), 1)[0]
        grade = family.grade(real, text)
        assert not grade.correct
        assert grade.why
        assert len(grade.why) < 200
        assert len(grade.parsed or "") <= 80
