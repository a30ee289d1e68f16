"""job.toml and the files of a job: what is refused, what it is called, and what a good one becomes."""

from __future__ import annotations

import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_material import CODE, JOB, SURFACE, WITH_DATA, files

from nested_rl import replies
from nested_rl.jobs.folder import digest, parse
from nested_rl.jobs.problems import problem
from nested_rl.jobs.surface import Key


def job(**lines: str) -> str:
    """JOB with some lines replaced (or added, when they name their table)."""
    text = JOB
    for key, line in lines.items():
        old = next((old for old in JOB.splitlines() if old.startswith(f"{key} ")), None)
        text = text.replace(old, line) if old else f"{text}{line}\n"
    return text


def test_a_good_job_becomes_values_with_every_default() -> None:
    config, problems = parse(files(), SURFACE)
    assert problems == ()
    assert config is not None
    assert config.base == "nano-m"
    assert config["training"] == {"steps": 25, "learning_rate": 5e-4, "batch_size": 128, "group_size": 8}
    assert config["nano"] == {"clip": 0.2, "std_normalize": True}
    assert config.given == {("model", "base"), ("training", "steps"), ("training", "learning_rate")}
    assert not config.advanced


def test_the_optional_table_is_counted_when_a_key_in_it_is_set() -> None:
    assert parse(files(JOB + "[nano]\nclip = 0.3\n"), SURFACE)[0].advanced
    assert not parse(files(JOB + "[nano]\n"), SURFACE)[0].advanced


FAULTS = {
    "no base": (JOB.replace('base = "nano-m"', ""), "job.missing", "no base"),
    "no learning rate": (job(learning_rate=""), "job.missing", "no learning_rate"),
    "unknown base": (job(base='base = "nano-l"'), "job.base", "unknown base nano-l"),
    "base of another type": (job(base="base = 3"), "job.base", "unknown base 3"),
    "misspelt key": (job(steps="step = 25"), "job.key", "unknown key step"),
    "renamed key": (job(x="rollouts_per_example = 8"), "job.key", "unknown key rollouts_per_example"),
    "unknown table": (JOB + "[eval]\nmax_tokens = 900\n", "job.table", "unknown table eval"),
    "key in the wrong table": (job(x="temperature = 1.0"), "job.place", "temperature belongs in [rollout]"),
    "key in no table": ("steps = 25\n" + job(steps=""), "job.place", "steps belongs in [training]"),
    "text for a number": (job(steps='steps = "25"'), "job.value", "bad value steps"),
    "true for a number": (job(steps="steps = true"), "job.value", "bad value steps"),
    "fraction for a whole number": (job(steps="steps = 2.5"), "job.value", "bad value steps"),
    "too many steps": (job(steps="steps = 1000000000"), "job.value", "bad value steps"),
    "no steps at all": (job(steps="steps = 0"), "job.value", "bad value steps"),
    "negative": (job(learning_rate="learning_rate = -1e-3"), "job.value", "bad value learning_rate"),
    "nan": (job(learning_rate="learning_rate = nan"), "job.value", "bad value learning_rate"),
    "inf": (job(learning_rate="learning_rate = inf"), "job.value", "bad value learning_rate"),
    "group of one": (job(x="group_size = 1"), "job.value", "bad value group_size"),
    "broken groups": (job(x="batch_size = 100"), "job.value", "bad value batch_size"),
    "table given as a value": ("training = 3\n[model]\nbase = 'nano-s'\n", "job.value", "bad value training"),
    "not TOML": ("[model\n", "job.syntax", "job.toml syntax"),
    "twice the same key": (job(x="steps = 25"), "job.syntax", "job.toml syntax"),
    "a number of 1500 digits": (job(x=f"batch_size = {'9' * 1500}"), "job.value", "bad value batch_size"),
    "brackets without end": ("a = " + "[" * 1900, "job.syntax", "job.toml syntax"),
    "too big": (JOB + "#" * 3000, "files.size", "job.toml too big"),
    "NUL": (JOB + "# \0", "files.text", "job.toml is not text"),
    "lone surrogate": (JOB + "# \ud800", "files.text", "job.toml is not text"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_brief(name: str) -> None:
    text, code, brief = FAULTS[name]
    config, problems = parse(files(text), SURFACE)
    assert config is None
    assert [(p.code, p.brief) for p in problems] == [(code, brief)]
    assert problems[0].where.startswith("job.toml")


def test_all_problems_are_told_at_once_with_the_nearest_right_name() -> None:
    text = '[model]\nbase = "nano-n"\n[training]\nlearning_rte = 1e-3\nsteps = 99\n[rolout]\ntemperature = 1.0\n'
    _, problems = parse(files(text), SURFACE)
    assert {p.code for p in problems} == {"job.base", "job.key", "job.value", "job.table"}
    by_code = {p.code: p for p in problems}
    assert by_code["job.key"].where == "job.toml:[training] learning_rte"
    assert by_code["job.key"].hint == "did you mean 'learning_rate'?"
    assert by_code["job.table"].hint == "did you mean [rollout]?"
    assert by_code["job.base"].hint.startswith("did you mean 'nano-")
    assert "from 1 to 40" in by_code["job.value"].message


def test_missing_files() -> None:
    _, problems = parse({}, SURFACE)
    assert [p.brief for p in problems] == ["no job.toml", "no environment.py"]


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "../job.toml", "/etc/passwd", "data/rows.jsonl", "environment.pyc", "data/../x.jsonl", "a\nb", ""],
)
def test_other_files_are_refused(name: str) -> None:
    config, (found,) = parse({**files(), name: "{}"}, SURFACE)
    assert config is None
    assert found.code == "files.unknown"
    assert "\n" not in found.brief + found.where


def test_data_files_where_they_are_allowed() -> None:
    good = {**files(), "data/rows.jsonl": "{}\n"}
    assert parse(good, WITH_DATA)[1] == ()
    for name in ("data/a/b.jsonl", "data/.jsonl", "data/..jsonl", "data/a.csv", "data/\u0661.jsonl", "data/a\\b.jsonl"):
        assert [p.code for p in parse({**files(), name: "{}\n"}, WITH_DATA)[1]] == ["files.unknown"]
    many = {**files(), **{f"data/{c}.jsonl": "{}\n" for c in "abc"}}
    assert [p.code for p in parse(many, WITH_DATA)[1]] == ["files.count"]
    big = {**files(), **{f"data/{c}.jsonl": "{}\n" * 1000 for c in "ab"}}
    assert [p.where for p in parse(big, WITH_DATA)[1]] == ["data/b.jsonl"]


def test_a_flood_of_unknown_keys_is_cut() -> None:
    text = JOB + "".join(f"k{i} = {i}\n" for i in range(150))
    assert 0 < len(parse(files(text), SURFACE)[1]) <= 8


def test_numbers_are_what_they_look_like() -> None:
    lr = Key(type=float, low=0.0, high=2.0)
    assert lr.accepts(1)
    assert lr.accepts(0.5)
    assert not lr.accepts(True)
    assert not lr.accepts(math.nan)
    assert not lr.accepts(10**400)
    assert not Key(type=int).accepts(1.0)
    assert not Key(type=bool).accepts(1)
    assert Key(type=str, choices=("a", "b")).accepts("a")
    assert not Key(type=str, choices=("a", "b")).accepts(["a"])


def test_the_digest_covers_names_and_texts_and_never_confuses_them() -> None:
    base = digest(files())
    assert digest(dict(reversed(files().items()))) == base
    different = [
        files(JOB + "\n"),
        files(code=CODE + "\n"),
        {**files(), "x": ""},
        {"job.toml": JOB + CODE, "environment.py": ""},
        {"job.toml": "", "environment.py": JOB + CODE},
    ]
    assert len({base, *map(digest, different)}) == len(different) + 1
    assert digest({"a": "\ud800"})


def test_every_code_has_a_brief_that_fits() -> None:
    for code, text in replies.BRIEF.items():
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        found = problem(code, "here", "message", **dict.fromkeys(names, "x" * 99))
        assert 0 < len(found.brief) <= replies.BRIEF_LIMIT
        assert found.brief.isascii()


_VALUE = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=8)), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["base", "steps", "x", "training"]), _VALUE))
def test_no_text_makes_it_fail(values: dict[str, object]) -> None:
    text = "[training]\n" + "".join(f"{key} = {value!r}\n" for key, value in values.items())
    for candidate in (text, text.replace("[training]\n", ""), text.lower()):
        config, problems = parse(files(candidate), SURFACE)
        assert config is None
        assert problems
        assert all(len(p.brief) <= replies.BRIEF_LIMIT and p.brief.isprintable() for p in problems)
