"""What every task family must do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import get_args

import pytest

from nested_rl import tasks
from nested_rl.interfaces import TaskFamily
from nested_rl.types import EvalSet, EvalSplit, Item, Split, Task

BUCKETS = {"hidden": 0, "dev": 1}
ODD = ["", " \n", "\0", "?" * 10_000, "ü“”\N{ZERO WIDTH SPACE}", "\ud800", "1e999", "-0", "[]"]


class FamilySuite:
    """Override the fixture `family`, and `right` when the bare answer is not what a model is asked to write."""

    n = 32
    """Items in the evaluations that are made."""

    @pytest.fixture
    def family(self) -> TaskFamily:
        """A family."""
        raise NotImplementedError("override the fixture `family`")

    def right(self, item: Item) -> str:
        """A right completion of an item."""
        return item.answer

    @pytest.mark.parametrize("split", get_args(Split))
    def test_tasks_are_endless_and_the_same_for_the_same_seed(self, family: TaskFamily, split: Split) -> None:
        first, again, other = (list(islice(family.tasks(split, seed=seed), 20)) for seed in (3, 3, 4))
        assert first == again
        assert first != other
        for task in first:
            assert task.family == family.name
            assert task.held_out == family.held_out
            assert task.id
            assert task.prompt.strip()
            assert task.brief.strip()

    def test_splits_share_no_task(self, family: TaskFamily) -> None:
        ids = [{task.id for task in islice(family.tasks(split), 50)} for split in get_args(Split)]
        assert not set.intersection(*ids)
        assert sum(map(len, ids)) == len(set.union(*ids))

    def test_an_evaluation_depends_on_difficulty_split_salt_and_size_alone(self, family: TaskFamily) -> None:
        one, *others = self._of_one_difficulty(family)
        made = self._made(family, one)
        assert len(made.items) == self.n
        assert (made.family, made.difficulty, made.split) == (family.name, one.difficulty, "hidden")
        assert self._made(family, others[-1]) == made
        other = self._made(family, one, salt="other")
        assert other.items != made.items
        assert other.digest != made.digest

    @pytest.mark.parametrize("split", get_args(EvalSplit))
    def test_every_item_is_in_the_bucket_of_its_split_for_ever(self, family: TaskFamily, split: EvalSplit) -> None:
        made = self._made(family, next(family.tasks()), split=split)
        for item in made.items:
            assert family.key(item.prompt) == item.key
            assert tasks.bucket(family.name, item.key) == BUCKETS[split]
        assert len({item.key for item in made.items}) == self.n

    def test_a_task_tells_nothing_of_its_evaluation(self, family: TaskFamily) -> None:
        some = self._of_one_difficulty(family)
        for split in get_args(EvalSplit):
            for item in self._made(family, some[0], split=split).items:
                for task in some:
                    assert item.prompt not in task.prompt
                    assert item.prompt not in task.brief

    def test_right_answers_are_right(self, family: TaskFamily) -> None:
        for item in self._made(family, next(family.tasks())).items:
            grade = family.grade(item, self.right(item))
            assert grade.correct, (item, grade)
            assert grade.parsed

    def test_wrong_answers_are_wrong_and_say_why(self, family: TaskFamily) -> None:
        items = self._made(family, next(family.tasks())).items
        for item in items:
            wrong = next(other for other in items if other.answer != item.answer)
            grade = family.grade(item, self.right(wrong))
            assert not grade.correct, (item, grade)
            assert grade.why

    @pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
    def test_odd_text_is_no_answer_and_no_question(self, family: TaskFamily, text: str) -> None:
        item = self._made(family, next(family.tasks())).items[0]
        grade = family.grade(item, text)
        assert not grade.correct
        assert grade.why
        assert family.key(text) is None

    def _made(self, family: TaskFamily, task: Task, *, split: EvalSplit = "hidden", salt: str = "salt") -> EvalSet:
        return family.eval_set(task, split, salt=salt, n=self.n)

    def _of_one_difficulty(self, family: TaskFamily) -> Sequence[Task]:
        found = list(islice(family.tasks(), 20))
        return [task for task in found if task.difficulty == found[0].difficulty]
