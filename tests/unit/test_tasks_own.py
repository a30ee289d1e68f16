"""Families of one's own: what their folder may be called, and at which scale they come."""

import shutil

import pytest

from nested_rl import tasks
from nested_rl.errors import SettingsError


def copied(to, *, drop_scale=None):
    """A built-in family's folder under another name, without one of its scales."""
    shutil.copytree(tasks.load("ledger")[0].card.folder, to, ignore=shutil.ignore_patterns("__pycache__"))
    if drop_scale:
        before, _, after = (to / "task.toml").read_text().partition(f"[{drop_scale}]")
        (to / "task.toml").write_text(before + "".join(after.partition("\n[")[1:]))
    return to


@pytest.mark.parametrize(("without", "comes_at"), [(None, "full"), ("full", "nano"), ("nano", "full")])
def test_a_family_comes_at_full_scale_unless_it_has_only_the_other(tmp_path, without, comes_at):
    (family,) = tasks.load(copied(tmp_path / "books", drop_scale=without))
    assert (family.name, family.scale) == ("books", comes_at)


def test_a_scale_that_is_asked_for_and_missing_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="no scale 'full'"):
        tasks.load(copied(tmp_path / "books", drop_scale="full"), scale="full")


@pytest.mark.parametrize(
    ("name", "said"),
    [("my-books", "letters, digits and underscores"), ("2books", "small letter"), ("calc_chain", "built-in family")],
)
def test_a_name_that_jobs_could_not_use_is_refused(tmp_path, name, said):
    with pytest.raises(SettingsError, match=said):
        tasks.load(copied(tmp_path / name))


def appended(path, text):
    path.write_text(path.read_text() + text)
    return path.read_text().count("\n") + 1 - text.count("\n")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("family.py", "print(undefined_)\n", "cannot be loaded: NameError: name 'undefined_' is not defined"),
        ("family.py", "def f(:\n", "cannot be loaded: SyntaxError"),
        ("family.py", "Family = lambda card: card.nmae\n", "Did you mean: 'name'"),
        ("family.py", "Family.sample = lambda self, rng, k: rng.randnit(3)\n", "Did you mean: 'randint'"),
        ("prompt.md", "{{ nothing_here }}\n", "gives no task: UndefinedError: 'nothing_here'"),
        ("prompt.md", "{% for %}\n", "gives no task: TemplateSyntaxError"),
    ],
)
def test_what_is_broken_in_it_is_one_sentence_with_the_line(told, tmp_path, file, text, said):
    folder = copied(tmp_path / "books")
    line = appended(folder / file, text)
    code, _, err = told("tasks", "show", folder)
    assert code == 2
    assert said in err
    assert f"{file}:{line})" in err
    assert err.count("\n") == 1


def test_a_built_in_family_may_be_given_by_its_folder():
    folder = tasks.load("ledger")[0].card.folder
    assert tasks.load(folder)[0].name == "ledger"
