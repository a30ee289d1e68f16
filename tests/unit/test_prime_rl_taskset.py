"""A job's environment as a package: what is in it, and its grading program, which needs nothing but what is in it."""

from __future__ import annotations

import asyncio
import importlib.util
import tomllib

import pytest

from nested_rl.errors import AgentFault, SettingsError
from nested_rl.inner.prime_rl.taskset import HARNESS, dialect, package
from nested_rl.jobs.grading import CAP, Grading
from nested_rl.jobs.sandbox import Limits, Zygote

PLAIN = """\
ROWS = [line.strip() for line in open("data/words.jsonl")]

def examples(rng, n):
    return [{"prompt": f"{rng.choice(ROWS)} {i}", "answer": str(i)} for i in range(n)]

def reward(prompt, completion, answer):
    return float(completion == answer)
"""
FILES = {"job.toml": "", "environment.py": PLAIN, "data/words.jsonl": '{"a": 1}\n{"b": 2}\n'}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (PLAIN, "plain"),
        ("import verifiers.v1 as vf", "native"),
        ("import verifiers as vf\ndef load_environment(): pass", "native"),
        ("def f():\n    from verifiers.v1 import Task", "native"),
        ("from .verifiers import x", "plain"),
        ("import verifiersx", "plain"),
        ("# import verifiers", "plain"),
        ("import verifiers\ndef f(:", "native"),
        ("def f(:", "plain"),
        ("x = '\0'", "plain"),
    ],
)
def test_the_dialect_is_what_environment_py_imports(code, expected):
    assert dialect({"environment.py": code}) == expected


def test_a_folder_without_environment_py_is_plain():
    assert dialect({}) == "plain"


def test_a_native_environment_is_in_the_package_as_it_is():
    code = "import verifiers.v1 as vf\n"
    made = package({**FILES, "environment.py": code}, family="calc_chain", name="job-7")
    assert made.taskset == "job-7"
    assert made.files["job_7/environment.py"] == code
    assert made.files["job_7/data/words.jsonl"] == FILES["data/words.jsonl"]
    assert not any("job.toml" in path for path in made.files)
    assert "job_7/grading/nested_rl/families/calc_chain/family.py" in made.files


def test_a_package_builds_with_hatchling_from_its_two_modules():
    made = package(FILES, family="calc_chain", name="job-7")
    project = tomllib.loads(made.files["pyproject.toml"])
    assert project["project"]["name"] == "job-7"
    modules = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert modules == ["job_7", HARNESS.replace("-", "_")]
    assert {path.partition("/")[0] for path in made.files} == {"pyproject.toml", *modules}


@pytest.mark.parametrize("name", ["", "7up", "a b", "Job", "a.b", "../a", HARNESS])
def test_a_name_that_is_no_module_is_refused(name):
    with pytest.raises(SettingsError, match="package name"):
        package(FILES, family="calc_chain", name=name)


def test_a_family_of_ones_own_comes_along(tmp_path):
    folder = tmp_path / "doubling"
    folder.mkdir()
    (folder / "task.toml").write_text('title = "x"\n')
    (folder / "family.py").write_text("class Family: ...\n")
    own = package(FILES, family=str(folder), name="job")
    known = package(FILES, family="calc_chain", name="job")
    more = set(own.files) - set(known.files)
    assert {path.rpartition("families/")[2] for path in more} == {"doubling/task.toml", "doubling/family.py"}


def test_no_evaluation_salt_or_job_setting_is_in_a_package():
    made = package({**FILES, "job.toml": "secret-setting = 1"}, family="calc_chain", name="job")
    assert "secret-setting" not in "".join(made.files.values())


# ---------------------------------------------------------------- the grading program


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    """The packaged client with its program beside it, as on a machine: what it needs of nested_rl is in the package."""
    folder = tmp_path_factory.mktemp("machine")
    for path, text in package(FILES, family="calc_chain", name="job").files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("packaged_asking", folder / "job" / "asking.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packaged_program_gives_rows_and_rewards(asking):
    rows, dropped = asking.rows(20, 1)
    assert (len(rows), dropped) == (20, 0)
    assert asking.rows(20, 1)[0] == rows

    async def graded():
        found = await asyncio.gather(*(program.reward("p", str(i % 2), "1") for i in range(50)))
        return [value for value, fault in found if not fault]

    program = asking.Asking()
    assert asyncio.run(graded()) == [0.0, 1.0] * 25
    program.close()


def test_a_package_without_an_environment_says_so(asking, monkeypatch):
    monkeypatch.setattr(asking, "_COMMAND", [*asking._COMMAND[:-1], "/nonexistent"])
    with pytest.raises(RuntimeError, match=r"(?s)grading program failed.*environment\.py"):
        asking.rows(1, 1)


@pytest.fixture(scope="module")
def zygote():
    with Zygote(kit=False) as zygote:
        yield zygote


@pytest.fixture
def grading(zygote):
    """A job with this body of its reward."""
    made = []

    def make(body, **limits):
        rows = "[{'prompt': str(i), 'answer': '1'} for i in range(n)]"
        code = f"def examples(rng, n):\n    return {rows}\ndef reward(prompt, completion, answer):\n    {body}\n"
        limits = Limits(**{"call_s": 5.0, **limits})
        made.append(Grading({"environment.py": code}, (), zygote, at_once=1, limits=limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("body", "value", "fault"),
    [
        ("return 0.25", 0.25, ""),
        ("return True", 1.0, ""),
        ("return 1e6", CAP, "was cut"),
        ("return -1e6", -CAP, "was cut"),
        ("return float('inf')", 0.0, "not a finite number"),
        ("return 'x'", 0.0, "not a number"),
        ("return [][1]", 0.0, "raised IndexError"),
        ("import random; random._os._exit(0)", 0.0, "ended its process"),
    ],
)
def test_a_reward_is_always_a_number_that_can_be_trained_on(grading, body, value, fault):
    graded = grading(body).reward("p", "c", "a")
    assert graded.value == value
    assert fault in graded.fault
    assert bool(graded.fault) == bool(fault)


def test_after_a_reward_that_ended_its_process_the_next_is_asked(grading):
    found = grading("import random; return 1.0 if completion else random._os._exit(0)")
    assert [found.reward("p", text, "a").value for text in ("", "x", "", "x")] == [0.0, 1.0, 0.0, 1.0]


def test_rewards_that_hang_are_not_asked_for_ever(grading, monkeypatch):
    monkeypatch.setattr("nested_rl.jobs.grading.HANGS", 1)
    found = grading("while True: pass", cpu_s=1, call_s=20.0)
    first, second = (found.reward("p", "c", "a") for _ in range(2))
    assert (first.value, second.value) == (0.0, 0.0)
    assert "used all of its 1 s" in first.fault
    assert "no more are asked" in second.fault


def test_examples_that_fail_are_the_jobs_doing(zygote):
    found = Grading({"environment.py": "def examples(rng, n):\n    return [][1]\n"}, (), zygote)
    with pytest.raises(AgentFault, match="IndexError"):
        found.rows(4, 0)


def test_a_job_that_can_give_only_so_many_rows_at_once_is_asked_more_often(zygote):
    code = "ROWS = [{'prompt': str(i), 'answer': str(i)} for i in range(70)]\ndef examples(rng, n):\n    return rng.sample(ROWS, n)\n"
    rows, dropped = Grading({"environment.py": code}, (), zygote).rows(200, 5)
    assert (len(rows), dropped) == (200, 0)
    assert len({row["prompt"] for row in rows}) > 60
    assert Grading({"environment.py": code}, (), zygote).rows(200, 5)[0] == rows
