"""The whole validation: for each way in which a job fails, a faulty job and a sound twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from attrs import evolve
from jobs_material import CODE, FAMILIES, JOB, LETTERS, SURFACE, WITH_DATA, draft, files, giving, rewarding

from nested_rl import tasks
from nested_rl.jobs.probe import probe
from nested_rl.jobs.sandbox import Limits, SandboxUnavailable, Zygote
from nested_rl.jobs.surface import ProbeRules
from nested_rl.jobs.validate import examine, validate
from nested_rl.types import Validation

LIMITS = Limits(cpu_s=1, memory_mib=256)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


def judged(zygote: Zygote, code: str, job: str = JOB, **more: str) -> Validation:
    return examine(draft(job, code, **more), SURFACE, zygote=zygote, families=FAMILIES, limits=LIMITS)


SOUND = {
    "the guide's job": CODE,
    "true and false": rewarding("return parse(completion) == answer"),
    "partial credit": rewarding("return 0.1 * ('>' in completion) + (parse(completion) == answer)"),
    "lenient": rewarding("return float(answer in completion)"),
    "one form only": rewarding("return float(completion == '>' + answer + '.')"),
    "below zero": rewarding("return 1.0 if parse(completion) == answer else -1.0"),
    "with length pressure": rewarding("return (parse(completion) == answer) - 0.01 * len(completion)"),
    "all lengths": giving('return make("calc_chain", rng, n, k=(1, 3))'),
    "endless": giving("while True:", '    yield from make("calc_chain", rng, 8)'),
    "randomness without rng": giving("import random", 'return make("calc_chain", random.Random(random.random()), n)'),
    "more than asked": giving('return make("calc_chain", rng, 2 * n)'),
    "its own questions": giving(
        "a = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(n)]",
        'return [{"prompt": f"{x}+{y}?", "answer": str((x + y) % 10)} for x, y in a]',
    ),
    "noisy": "print('hello')\n" + rewarding("print(completion)", "return float(parse(completion) == answer)"),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_job_is_valid(zygote: Zygote, name: str) -> None:
    found = judged(zygote, SOUND[name])
    assert found.problems == ()
    assert found.ok
    assert found.base == "nano-m"
    assert found.families == (() if name == "its own questions" else ("calc_chain",))
    assert found.notes["rows/probed"] == 32


FAULTS = {
    # numbers are those of the failure kinds: import, hang, rows, reward values, slowness, memory, escape
    "1 syntax": (CODE + "def f(:\n", "environment.syntax", "environment.py syntax"),
    "2 missing module": ("import numpyy\n" + CODE, "environment.import", "import numpyy not allowed"),
    "3 no reward": (CODE[: CODE.index("def reward")], "environment.missing", "environment.py has no reward"),
    "3 raises at import": ("x = [][1]\n" + CODE, "environment.raised", "environment.py raised IndexError"),
    "3 exits at import": ("raise SystemExit(0)\n" + CODE, "environment.raised", "environment.py raised SystemExit"),
    "5 hangs at import": ("while True: pass\n" + CODE, "environment.slow", "environment.py too slow"),
    "5 hangs in examples": (giving("while True: pass"), "examples.slow", "examples too slow"),
    "6 network": ("import socket\n" + CODE, "environment.import", "import socket not allowed"),
    "7 no rows": (giving("return []"), "examples.count", "examples gave too few rows"),
    "7 few rows": (giving('return make("calc_chain", rng, n // 2)'), "examples.count", "examples gave too few rows"),
    "9 rows of texts": (giving("return ['a'] * n"), "examples.row", "row needs prompt and answer"),
    "9 nothing": (giving("return None"), "examples.row", "row needs prompt and answer"),
    "10 no prompt": (giving("return [{'answer': '1'}] * n"), "examples.row", "row needs prompt and answer"),
    "10 empty prompt": (giving("return [{'prompt': ' ', 'answer': '1'}] * n"), "examples.prompt", "bad prompt"),
    "10 empty answer": (giving("return [{'prompt': '1?', 'answer': ''}] * n"), "examples.answer", "bad answer"),
    "11 all the same": (giving('return make("calc_chain", rng, 1) * n'), "examples.same", "examples all the same"),
    "13 async": (CODE.replace("def reward", "async def reward"), "environment.async", "reward must not be async"),
    "14 arguments": (
        CODE.replace("(prompt, completion, answer)", "(completion, answer)"),
        "environment.arguments",
        "reward needs prompt completion answer",
    ),
    "15 none": (rewarding("parse(completion)"), "reward.number", "reward must be a number"),
    "15 text": (rewarding("return 'good'"), "reward.number", "reward must be a number"),
    "16 nan": (rewarding("return float('nan')"), "reward.number", "reward must be a number"),
    "16 inf": (rewarding("return float('inf')"), "reward.number", "reward must be a number"),
    "17 empty reply": (
        rewarding("return float(completion[-2] == answer)"),
        "reward.raised",
        "reward raised IndexError",
    ),
    "17 odd digits": (
        rewarding("a = completion.split('>')[-1].rstrip('.')", "return float(a.isdigit() and int(a) == int(answer))"),
        "reward.raised",
        "reward raised ValueError",
    ),
    "17 misspelt name": (
        rewarding("return float(pars(completion) == answer)"),
        "reward.raised",
        "reward raised NameError",
    ),
    "18 constant": (rewarding("return 1.0"), "reward.flat", "reward is flat"),
    "18 length": (rewarding("return len(completion)"), "reward.flat", "reward is flat"),
    "18 form only": (rewarding("return float('>' in completion)"), "reward.flat", "reward is flat"),
    "19 endless reward": (rewarding("while True: pass"), "reward.slow", "reward too slow"),
    "19 backtracking": (
        rewarding("import re", "return bool(re.match(r'(a+)+$', completion)) or parse(completion) == answer"),
        "reward.slow",
        "reward too slow",
    ),
    "20 memory": (
        "x = [bytearray(10**6) for _ in range(6000)]\n" + CODE,
        "environment.raised",
        "environment.py raised MemoryError",
    ),
    "21 noise": (
        rewarding("import random", "return random.random() + (parse(completion) == answer)"),
        "reward.random",
        "reward not repeatable",
    ),
    "21 memory of calls": (
        "seen = []\n" + rewarding("seen.append(1)", "return len(seen)"),
        "reward.random",
        "reward not repeatable",
    ),
    "22 huge scale": (rewarding("return 1e14 * (parse(completion) == answer)"), "reward.large", "reward too large"),
    "23 inverted": (rewarding("return float(parse(completion) != answer)"), "reward.inverted", "reward is inverted"),
    "23 another form": (rewarding("return float(completion == answer)"), "reward.flat", "reward is flat"),
    "24 ends the process": (
        rewarding("import random", "random._os._exit(0)"),
        "reward.ended",
        "reward ended early",
    ),
    "25 too long": (
        giving("return [{'prompt': '1+' * 40 + str(i), 'answer': '1'} for i in range(n)]"),
        "examples.prompt",
        "bad prompt",
    ),
    "25 unknown letters": (
        giving("return [{'prompt': f'What is {i}?', 'answer': '1'} for i in range(n)]"),
        "examples.prompt",
        "bad prompt",
    ),
    "29 unknown family": (CODE.replace("calc_chain", "calc_chian"), "examples.family", "unknown family calc_chian"),
    "29 length out of range": (
        giving('return make("calc_chain", rng, n, k=99)'),
        "examples.raised",
        "examples raised SettingsError",
    ),
    "31 empty reply pays": (
        rewarding("return float(not completion or parse(completion) == answer)"),
        "reward.junk",
        "junk earns more than the answer",
    ),
    "31 a word pays": (
        rewarding("return 1.0 if 'answer' in completion.lower() else float(parse(completion) == answer)"),
        "reward.junk",
        "junk earns more than the answer",
    ),
    "31 length pays": (
        rewarding("return 0.5 * len(completion) + (parse(completion) == answer)"),
        "reward.junk",
        "junk earns more than the answer",
    ),
    "32 processes": ("import subprocess\n" + CODE, "environment.import", "import subprocess not allowed"),
    "32 files": (giving("return open('x').read()"), "environment.name", "open not allowed"),
    "34 not text": (
        giving("return [{'prompt': '1?', 'answer': 1}] * n"),
        "examples.row",
        "row needs prompt and answer",
    ),
    "34 not Unicode": (
        giving("return [{'prompt': chr(0xd800), 'answer': '1'}] * n"),
        "examples.row",
        "row needs prompt and answer",
    ),
    "34 too big": (
        giving("return [{'prompt': 'x' * 10**6, 'answer': '1'}] * n"),
        "examples.ended",
        "examples ended early",
    ),
    "35 remembers": (
        "calls = []\n" + giving("calls.append(1)", 'return make("calc_chain", rng, n, k=1 + len(calls) % 3)'),
        "examples.random",
        "examples not repeatable",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_failure_is_told_by_code_and_brief(zygote: Zygote, name: str) -> None:
    code, expected, brief = FAULTS[name]
    found = judged(zygote, code)
    assert not found.ok
    assert (expected, brief) in [(p.code, p.brief) for p in found.problems]
    assert len(found.problems) <= 2
    first = found.problems[0]
    assert first.where.startswith("environment.py")
    assert first.message
    assert first.message.isascii()


def test_the_message_names_line_and_completion(zygote: Zygote) -> None:
    (problem,) = judged(zygote, rewarding("x = 1", "return float(completion[-1] == answer)")).problems
    assert problem.where == "environment.py:8 reward"
    assert problem.message == ("reward raised IndexError in line 8: string index out of range; the completion was ''")
    (problem,) = judged(zygote, CODE.replace("calc_chain", "string_pipelin")).problems
    assert "did you mean 'string_pipeline'?" in problem.message


def test_faults_of_folder_and_code_are_told_together_and_nothing_runs(zygote: Zygote) -> None:
    found = judged(zygote, "while True: pass\nimport os\n", JOB.replace("steps", "step"))
    assert {p.code for p in found.problems} == {"job.key", "environment.import", "environment.missing"}
    assert found.base is None


def test_the_data_of_another_family_is_valid_and_recognised(zygote: Zygote) -> None:
    for family in FAMILIES:
        found = judged(zygote, CODE.replace("calc_chain", family.name))
        assert found.ok
        assert found.families == (family.name,)


def test_the_advanced_table_is_counted(zygote: Zygote) -> None:
    assert judged(zygote, CODE, JOB + "[nano]\nclip = 0.3\n").advanced
    assert not judged(zygote, CODE).advanced


def rows_in(buckets: range, count: int) -> list[dict[str, str]]:
    """Questions of calc_chain from some buckets, found by chance."""
    (family,) = (f for f in FAMILIES if f.name == "calc_chain")
    assert isinstance(family, tasks.ChainFamily)
    import random

    stream = family.programs(random.Random(1), 3, buckets)
    rng = random.Random(2)
    found: dict[str, str] = {}
    while len(found) < count:
        _, program = next(stream)
        found[family.question(program, rng)] = family.solve(program)
    return [{"prompt": prompt, "answer": answer} for prompt, answer in found.items()]


@pytest.mark.parametrize(("held_out", "valid"), [(0, True), (16, True), (17, False), (32, False)])
def test_held_out_questions_are_counted_and_refused_when_they_are_most(
    zygote: Zygote, held_out: int, valid: bool
) -> None:
    rows = rows_in(range(2), held_out) + rows_in(range(2, 8), 32 - held_out)
    code = f"ROWS = {rows!r}\n" + CODE.replace('make("calc_chain", rng, n)', "ROWS[:n]")
    found = probe(files(code=code), SURFACE.probe, zygote=zygote, families=FAMILIES, limits=LIMITS)
    assert found.notes["rows/held_out"] == held_out
    assert [p.code for p in found.problems] == ([] if valid else ["examples.held_out"])
    assert found.families == ("calc_chain",)


def test_a_job_with_data_and_its_own_grader(zygote: Zygote) -> None:
    code = (
        "import json\n"
        'ROWS = [json.loads(line) for line in open("data/sums.jsonl")]\n'
        "def examples(rng, n):\n    return rng.sample(ROWS, n)\n"
        "def reward(prompt, completion, answer):\n    return float(completion.strip() == answer)\n"
    )
    rows = "".join(f'{{"prompt": "What is {i} + 1?", "answer": "{i + 1}"}}\n' for i in range(20))
    given = draft(code=code, **{"data/sums.jsonl": rows})
    assert examine(given, WITH_DATA, zygote=zygote, limits=LIMITS).problems == ()
    wrong = draft(code=code.replace("strip()", "strip(") + "\n", **{"data/sums.jsonl": "[]\n"})
    assert {p.code for p in examine(wrong, WITH_DATA, zygote=zygote).problems} == {"environment.syntax", "files.rows"}


def test_the_letters_of_the_model_bound_prompts_and_answers(zygote: Zygote) -> None:
    rules = evolve(SURFACE.probe, letters=LETTERS - {"c"}, answer_chars=1)
    found = probe(files(), rules, zygote=zygote, limits=LIMITS)
    assert [p.code for p in found.problems] == ["examples.prompt"]
    assert "'c'" in found.problems[0].message


def test_at_least_one_form_of_answer_is_needed() -> None:
    with pytest.raises(ValueError, match="answer_forms"):
        ProbeRules(answer_forms=())


async def test_many_drafts_at_once(zygote: Zygote) -> None:
    drafts = [draft(), draft(code=rewarding("return 1.0")), draft(job="")] * 4
    work = [validate(d, SURFACE, zygote=zygote, families=FAMILIES, limits=LIMITS) for d in drafts]
    found = await asyncio.gather(*work)
    assert [v.ok for v in found] == [True, False, False] * 4
    assert all(v.seconds > 0 for v in found)


async def test_a_broken_sandbox_is_not_the_agents_fault() -> None:
    with Zygote(python="/bin/false") as broken, pytest.raises(SandboxUnavailable):
        await validate(draft(), SURFACE, zygote=broken)
