"""Loading families, their cards, the task texts, and families of one's own."""

import doctest
import itertools
import random
import shutil
from pathlib import Path

import pytest

from nested_rl import answers, cards, chains, jobkit, tasks, wordings
from nested_rl.errors import SettingsError, UnknownName
from nested_rl.interfaces import TaskFamily

SIX = ("calc_chain", "dispatch", "ledger", "multi_hop", "string_pipeline", "triage")
SCALES = ("nano", "full")


def first(family, n, split="train", seed=0):
    return list(itertools.islice(family.tasks(split, seed=seed), n))


@pytest.mark.parametrize("module", [answers, cards, chains, jobkit, tasks, wordings])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0


def test_the_six_families_and_which_is_held_out():
    assert tasks.names() == SIX
    families = tasks.load()
    assert [f.name for f in families] == list(SIX)
    assert [f.name for f in families if f.held_out] == ["triage"]
    assert {f.name: f.difficulty for f in tasks.load(scale="nano")} == {
        "calc_chain": 3, "multi_hop": 3, "string_pipeline": 2, "ledger": 2, "dispatch": 3, "triage": 3,
    }  # fmt: skip


def test_unknown_names_say_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'calc_chain'"):
        tasks.load("calc_chan")
    with pytest.raises(UnknownName, match="scale 'nanno'; did you mean 'nano'"):
        tasks.load("ledger", scale="nanno")
    with pytest.raises(SettingsError, match=r"needs task\.toml and family\.py"):
        tasks.load("./no/such/folder")
    with pytest.raises(UnknownName, match="split"):
        next(tasks.load("ledger")[0].tasks("training"))


def test_a_family_at_another_scale_or_difficulty():
    (family,) = tasks.load("ledger")
    assert (family.scale, family.difficulty) == ("full", 4)
    assert family.at("nano").difficulty == 2
    assert first(family.at("nano", difficulty=3), 1)[0].id.startswith("ledger-k3-")
    with pytest.raises(SettingsError, match=r"difficulty 9 is outside 1\.\.3"):
        family.at("nano", difficulty=9)


@pytest.mark.parametrize("family", tasks.load(), ids=SIX)
def test_tasks_are_endless_repeatable_and_apart(family):
    assert first(family, 5, seed=1) == first(family, 5, seed=1)
    assert first(family, 5, seed=1) != first(family, 5, seed=2)
    seeds = [{t.seed for t in first(family, 200, split)} for split in ("train", "validation", "test")]
    assert sum(map(len, seeds)) == len(set.union(*seeds))
    assert {t.variant for t in first(family, 30)} == {0, 1, 2}
    for task in first(family, 3):
        assert task.id == f"{family.name}-k{family.difficulty}-v{task.variant}-s{task.seed}"
        assert task.brief == f"task {family.name} k {family.difficulty}"
        assert task.held_out == (family.name == "triage")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", SIX)
def test_the_text_of_a_task_explains_the_split_and_shows_only_training_questions(name, scale):
    (family,) = tasks.load(name, scale=scale)
    texts = {t.variant: t.prompt for t in first(family, 30)}
    assert len(set(texts.values())) == 3
    for text in texts.values():
        assert "bucket" in text.lower()
        assert f'"{name}:"' in text
        assert "{{" not in text
        assert "{%" not in text
        shown = [line[2:].split(" → ")[0] for line in text.splitlines() if line.startswith("- ")]
        assert len(shown) == 3
        assert all(tasks.bucket(name, family.key(prompt)) >= 2 for prompt in shown)


def test_the_installed_package_carries_the_families(tmp_path, monkeypatch):
    package = tmp_path / "site" / "nested_rl"
    shutil.copytree(cards.home(), package / "families")
    monkeypatch.setattr(cards, "__file__", str(package / "cards.py"))
    assert cards.home() == package / "families"
    assert tasks.names() == SIX
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    assert '"tasks" = "nested_rl/families"' in pyproject


# ---------------------------------------------------------------- a family of one's own

PARITY = """
from nested_rl.tasks import ChainFamily, Program

class Family(ChainFamily):
    def sample(self, rng, k):
        return Program(rng.randrange(2), tuple(rng.choice("fk") for _ in range(k)))
    def step(self, program, i, state):
        return 1 - state if program.ops[i] == "f" else state
    def answer(self, program, state):
        return str(state)
    def show(self, program, i, state):
        return str(state)
    def spell(self, program):
        return f"p{program.start}{''.join(program.ops)}"
    def question(self, program, rng):
        return self.spell(program) + "?"
    def read(self, text):
        body = text.rstrip("?")
        return Program(int(body[1]), tuple(body[2:])) if body[:1] == "p" and body[1:2].isdecimal() else None
"""
CARD = 'title = "Flips"\nsummary = "Flip or keep."\n[nano]\ndifficulty = 8\nk = [1, 12]\n'


def own(tmp_path, card=CARD, code=PARITY):
    folder = tmp_path / "flips"
    folder.mkdir()
    (folder / "task.toml").write_text(card, "utf-8")
    (folder / "family.py").write_text(code, "utf-8")
    (folder / "prompt.md").write_text('Flips at k = {{ k }}.\n{% include "rules.md" %}', "utf-8")
    return folder


def test_a_family_of_ones_own_is_a_folder(tmp_path):
    folder = own(tmp_path)
    (family,) = tasks.load(folder, scale="nano")
    task = first(family, 1)[0]
    assert task.prompt.startswith("Flips at k = 8.")
    assert "sha256" in task.prompt
    items = family.eval_set(task, "dev", salt="s", n=16).items
    assert all(family.grade(item, f"01>{item.answer}.").correct for item in items)
    assert all(item.answer == str((int(item.key[1]) + item.key.count("f")) % 2) for item in items)
    jobkit.warm(folder)
    assert len(jobkit.make("flips", random.Random(0), 3)) == 3
    with pytest.raises(SettingsError, match="has no scale 'full'"):
        tasks.load(folder, scale="full")


def test_a_small_family_says_that_it_has_too_few_items(tmp_path):
    (family,) = tasks.load(own(tmp_path), scale="nano")
    with pytest.raises(SettingsError, match="fewer than 256 hidden items"):
        family.eval_set(first(family.at("nano", difficulty=6), 1)[0], "hidden", salt="s")
    with pytest.raises(SettingsError, match="choose a larger k"):
        list(family.programs(random.Random(0), 1, [b for b in range(8) if b not in bins(family, 1)]))


def bins(family, k):
    rng = random.Random(1)
    return {tasks.bucket("flips", family.spell(family.sample(rng, k))) for _ in range(100)}


def test_any_task_family_class_will_do(tmp_path):
    code = """
from nested_rl.interfaces import TaskFamily
from nested_rl.types import Task

class Family(TaskFamily):
    def __init__(self, card):
        self.name = card.name
    def tasks(self, split="train", *, seed=0):
        yield Task(id="x", family=self.name, difficulty=1)
    def key(self, prompt): return None
    def eval_set(self, task, split, *, salt, n=256): raise NotImplementedError
    def grade(self, item, text): raise NotImplementedError
"""
    (family,) = tasks.load(str(own(tmp_path, code=code)), scale="nano")
    assert isinstance(family, TaskFamily)
    assert next(family.tasks()).family == "flips"


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (CARD + "max_token = 3\n", "did you mean 'max_tokens'"),
        ("titel = 'x'\n" + CARD, "did you mean 'title'"),
        (CARD.replace("summary", "# summary"), "summary"),
        ("title = ", r"task\.toml"),
        (CARD.replace("difficulty = 8", "difficulty = 80"), r"outside 1\.\.12"),
    ],
)
def test_a_bad_card_is_refused_by_name(tmp_path, card, said):
    with pytest.raises(SettingsError, match=said):
        tasks.load(own(tmp_path, card=card), scale="nano")


def test_a_folder_without_a_family_class_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="no class `Family`"):
        tasks.load(own(tmp_path, code="x = 1"), scale="nano")
