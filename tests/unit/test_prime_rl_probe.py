"""The full-scale probe without verifiers: the plain dialect runs, the native one is read. A faulty job each, and its sound twin.

Native environments run in tests/verifiers.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from attrs import evolve

from nested_rl import tasks
from nested_rl.errors import MissingExtra
from nested_rl.inner.prime_rl import job, native
from nested_rl.inner.prime_rl.keys.allowed import TABLES
from nested_rl.inner.prime_rl.probe import Probe, fitted
from nested_rl.inner.prime_rl.wording import HINTS, worded
from nested_rl.jobs import probe as plain_probe
from nested_rl.jobs.check import check
from nested_rl.jobs.folder import JobConfig
from nested_rl.types import Draft

SURFACE = job.surface(("Qwen/Qwen3-0.6B",))
FAMILIES = tasks.load("calc_chain", "ledger")
TASK = FAMILIES[0].task()

PLAIN = """\
def examples(rng, n):
    rows = []
    for _ in range(n):
        a, b = rng.randint(100, 999), rng.randint(100, 999)
        rows.append({"prompt": f"What is {a} + {b}?", "answer": str(a + b)})
    return rows

def reward(prompt, completion, answer):
    return float(completion.split()[-1:] == [answer])
"""
ROW = "{'prompt': f'What is {i} + {i}?', 'answer': str(2 * i)}"


def giving(*lines):
    head, tail = "def examples(rng, n):\n", PLAIN[PLAIN.index("\ndef reward") :]
    return head + "".join(f"    {line}\n" for line in lines) + tail


def rewarding(*lines):
    head = PLAIN[: PLAIN.index("    return float")]
    return head + "".join(f"    {line}\n" for line in lines)


def config(**training):
    tables = {name: {key: rule.default for key, rule in keys.items()} for name, keys in TABLES.items()}
    tables["training"] |= {"steps": 10, "learning_rate": 5e-5, **training}
    return JobConfig(base=SURFACE.bases[0], tables={**tables, "prime_rl": {}})


@pytest.fixture(scope="module")
def probe():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain_probe, "LIMITS", evolve(plain_probe.LIMITS, cpu_s=1))
        probe = Probe(SURFACE)
        yield probe
        asyncio.run(probe.close())


def examined(probe, code, **data):
    files = {"job.toml": "", "environment.py": code, **data}
    return asyncio.run(probe.examine(Draft(task=TASK, files=files), config(), FAMILIES))


DATA = {"data/rows.jsonl": "".join(f'{{"prompt": "{i} doubled?", "answer": "{2 * i}"}}\n' for i in range(99))}
SOUND = {
    "a generator and a grader": (PLAIN, {}),
    "rows from data": (
        "import json\n" + giving("return [json.loads(line) for line in open('data/rows.jsonl')][:n]"),
        DATA,
    ),
    "rows one by one": (giving(f"yield from ({ROW} for i in range(n))"), {}),
    "endless (8: only as many rows are taken as asked for)": (
        giving("i = 0", "while True:", "    i += 1", f"    yield {ROW}"),
        {},
    ),
    "contains the answer": (rewarding("return float(answer in completion)"), {}),
    "a little for the form": (
        rewarding("return 0.9 * (completion.split()[-1:] == [answer]) + 0.1 * ('Answer:' in completion)"),
        {},
    ),
    "between tags": (
        "import re\n" + rewarding("return float(re.findall('<answer>(.*?)</answer>', completion)[-1:] == [answer])"),
        {},
    ),
    "in a box": (
        "import re\n" + rewarding(r"return float(re.findall(r'\\boxed\{(.*?)\}', completion)[-1:] == [answer])"),
        {},
    ),
    "shorter is better": (
        rewarding("return (completion.split()[-1:] == [answer]) - 0.01 * min(len(completion), 50)"),
        {},
    ),
    "the answer stands in the prompt": (
        giving("return [{'prompt': f'Say {i}', 'answer': f'{i}'} for i in range(n)]"),
        {},
    ),
    "two answers": (
        giving("return [{'prompt': f'Is {i} even?', 'answer': 'no' if i % 2 else 'yes'} for i in range(n)]"),
        {},
    ),
    "partial credit": (
        rewarding("last = completion.split()[-1:]", "return (last == [answer]) + 0.1 * ('Answer' in completion)"),
        {},
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_plain_job_is_valid(probe, name):
    code, data = SOUND[name]
    found = examined(probe, code, **data)
    assert found.problems == ()
    assert found.notes["rows/probed"] == 64


FAULTS = {
    # numbers are those of the failure kinds; 8 and 12 are native's alone, 25 to 29 and 33 are of job.toml
    "1 syntax": (PLAIN + "def f(:\n", "environment.syntax"),
    "2 missing module": ("import numpyy\n" + PLAIN, "environment.import"),
    "3 no reward": (PLAIN[: PLAIN.index("def reward")], "environment.missing"),
    "5 hangs at import": ("while True: pass\n" + PLAIN, "environment.slow"),
    "6 network": ("import urllib.request\n" + PLAIN, "environment.import"),
    "7 no rows": (giving("return []"), "examples.count"),
    "9 rows of texts": (giving("return ['a'] * n"), "examples.row"),
    "10 no prompt": (giving("return [{'answer': '1'}] * n"), "examples.row"),
    "10 empty prompt": (giving("return [{'prompt': '', 'answer': '1'}] * n"), "examples.prompt"),
    "11 all the same": (giving(f"return [{ROW} for i in [1] * n]"), "examples.same"),
    "13 async": (PLAIN.replace("def reward", "async def reward"), "environment.async"),
    "14 arguments": (PLAIN.replace("(prompt, completion, answer)", "(completion, answer)"), "environment.arguments"),
    "15 none": (rewarding("pass"), "reward.number"),
    "16 nan": (rewarding("return float('nan')"), "reward.number"),
    "17 empty reply": (rewarding("return float(completion.split()[-1] == answer)"), "reward.raised"),
    "18 constant": (rewarding("return 0.5"), "reward.flat"),
    "19 endless reward": (rewarding("while True: pass"), "reward.slow"),
    "20 memory": (giving("x = [bytearray(10**6) for _ in range(6000)]", "return []"), "examples.raised"),
    "21 noise": ("import random\n" + rewarding("return random.random() + (answer in completion)"), "reward.random"),
    "22 huge scale": (rewarding("return 1e14 * (completion.split()[-1:] == [answer])"), "reward.large"),
    "23 inverted": (rewarding("return float(completion.split()[-1:] != [answer])"), "reward.inverted"),
    "24 ends the process": (giving("import random; random._os._exit(0)"), "examples.ended"),
    "31 length pays": (rewarding("return 0.5 * len(completion) + (completion.split()[-1:] == [answer])"), ("reward.junk", "reward.large")),
    "23 inverted in one form": (
        rewarding("return -1.0 if completion == answer else 0.0 if completion.isdigit() else -0.5"),
        "reward.inverted",
    ),
    **{
        f"31 {name} pays": (rewarding(f"return 1.0 if {what} else float(completion.split()[-1:] == [answer])"), "reward.junk")
        for name, what in {
            "answer": "'answer' in completion.lower()",
            "a form": "'Answer:' in completion",
            "think": "'think' in completion",
            "a box": "'boxed' in completion",
            "one of the words": "'therefore' in completion.lower()",
            "the prompt": "prompt in completion",
            "length": "len(completion) > 3000",
            "many words": "len(completion.split()) > 300",
            "any long number": "completion.isdigit() and len(completion) > 6",
        }.items()
    },
    "11 one answer": (giving("return [{'prompt': f'q {i}', 'answer': 'yes'} for i in range(n)]"), "examples.same"),
    "32 files": (giving("return open('/etc/passwd').read()"), "environment.name"),
    "34 not text": (giving("return [{'prompt': 'a', 'answer': 1}] * n"), "examples.row"),
    "35 remembers": ("CALLS = []\n" + giving("CALLS.append(1)", "return [{'prompt': f'{i} {len(CALLS)}', 'answer': str(i)} for i in range(n)]"), "examples.random"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_failure_of_a_plain_job_is_told_by_code(probe, name):
    code, expected = FAULTS[name]
    codes = [p.code for p in examined(probe, code).problems]
    assert set(codes) & {expected} if isinstance(expected, str) else set(codes) & set(expected), codes


@pytest.mark.parametrize("name", ["7 no rows", "9 rows of texts", "11 all the same", "18 constant", "35 remembers"])
def test_a_taskset_is_not_advised_as_the_plain_dialect_is(probe, name):
    (plain, *_) = examined(probe, FAULTS[name][0]).problems
    native = worded(plain, rows=64)
    assert native.hint != plain.hint
    assert (native.code, native.brief) == (plain.code, plain.brief)
    assert not any(word in native.hint for word in ("rows", "rng,", "completions", "{"))
    assert native.where in ("environment.py load()", "environment.py reward")


def test_the_names_of_the_earlier_verifiers_are_told(probe):
    (found,) = examined(probe, NATIVE.replace("import verifiers.v1 as vf", "import verifiers as vf")).problems
    assert (found.code, found.where) == ("environment.import", "environment.py:2")
    assert found.hint == "write `import verifiers.v1 as vf`"
    assert found.hint not in HINTS.values()


def test_what_earns_too_much_is_named(probe):
    code = rewarding("return 1.0 if 'Answer' in completion else float(completion.split()[-1:] == [answer])")
    (found,) = examined(probe, code).problems
    assert found.message == "a wrong answer in the form 'Answer: WRONG' earns 1, the right answer 1"


def rows_in(buckets, n):
    (family,) = (f for f in FAMILIES if f.name == "calc_chain")
    rng = random.Random(3)
    programs = [next(family.programs(rng, 4, buckets)) for _ in range(n)]
    return [{"prompt": family.question(program, rng), "answer": family.solve(program)} for _, program in programs]


def lines(rows):
    return "".join(f'{{"question": {{"text": "{row["prompt"]}"}}}}\n' for row in rows)


def test_data_made_of_evaluation_questions_is_refused_though_the_probed_rows_are_others(probe):
    few = {"data/q.jsonl": lines(rows_in([0], 2) + rows_in([2, 3], 4))}
    assert examined(probe, PLAIN, **few).problems == ()
    many = {"data/q.jsonl": lines(rows_in([0], 5) + rows_in([1], 3) + rows_in([2], 2))}
    (found,) = examined(probe, PLAIN, **many).problems
    assert (found.code, found.where) == ("examples.held_out", "data/q.jsonl")
    assert "8 of the 10 questions" in found.message


def test_a_prompt_leaves_room_for_its_completion_and_a_batch_has_its_prompts():
    rules = fitted(SURFACE.probe, config(seq_len=1024, batch_size=512, group_size=4))
    assert rules.prompt_chars == 3 * (1024 - 512 - 32)
    assert rules.rows == 128
    assert fitted(SURFACE.probe, config()).rows == SURFACE.probe.rows


def test_files_that_are_too_big_are_not_read(probe, monkeypatch):
    """Their sizes are told already, when the folder is looked at."""
    monkeypatch.setattr("nested_rl.inner.prime_rl.probe.dialect", lambda _: 1 / 0)
    monkeypatch.setattr("nested_rl.inner.prime_rl.probe._copies", lambda *_: 1 / 0)
    big = {"environment.py": "(" * 100_000, "data/a.jsonl": "[" * 5_000_000}
    assert probe.written(big, FAMILIES) == ()


def test_checks_that_fail_are_the_jobs_problem(probe, monkeypatch, caplog):
    monkeypatch.setattr("nested_rl.inner.prime_rl.probe.check", lambda *_: 1 / 0)
    (found,) = examined(probe, PLAIN).problems
    assert "cannot be checked" in found.message
    assert "bug of nested_rl" in caplog.text


@pytest.mark.parametrize("python", ["/bin/false", "/nonexistent/python"])
def test_without_verifiers_a_native_job_says_which_extra_to_install(python):
    probe = Probe(SURFACE, python=python)
    with pytest.raises(MissingExtra, match=r"nested-rl\[prime-rl\]"):
        examined(probe, NATIVE)
    with pytest.raises(MissingExtra):
        probe.require()
    assert examined(probe, PLAIN).problems == ()
    asyncio.run(probe.close())


# ---------------------------------------------------------------- the native dialect as it is written

NATIVE = """\
import asyncio
import verifiers.v1 as vf

__all__ = ["Sums"]

class Data(vf.TaskData):
    answer: str

class Sum(vf.Task[Data]):
    @vf.stop
    async def once(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=1.0)
    async def right(self, trace, *, strict=True) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def length(self, task, trace, unit=1) -> float:
        return len(trace.last_reply)

class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        return [Sum(Data(idx=i, prompt=str(i), answer=str(i))) for i in range(64)]
"""


def read(code):
    return check({"environment.py": code}, native.widened(SURFACE), native.form)


def test_a_sound_native_environment_reads_well():
    assert read(NATIVE) == ()


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("__all__ =", "all =", "environment.missing", "no __all__"),
        ("__all__ =", "def load_environment(): pass\nall =", "environment.missing", "earlier verifiers"),
        ("async def right", "def right", "environment.arguments", "awaits it"),
        ("(self, trace, *", "(self, completion, *", "environment.arguments", "takes completion"),
        ("(self, trace, *", "(self, trace, runtime, *", "environment.name", "runtime is not allowed"),
        (
            "    def load(self)",
            "    def toolsets(cls, config): pass\n    def load(self)",
            "environment.name",
            "toolsets",
        ),
        ("import asyncio", "import subprocess", "environment.import", "'subprocess'"),
        ("import asyncio", "from verifiers.v1.clients import Client", "environment.import", "verifiers.v1.clients"),
        ("import asyncio", "from nested_rl.jobkit import make", "environment.import", "jobkit"),
        ("return float", "await asyncio.to_thread(print)\n        return float", "environment.name", "to_thread"),
        ("return float", "eval('1')\n        return float", "environment.name", "eval"),
        ("range(64)", "range(10**12)", "environment.number", "length above"),
    ],
)
def test_what_verifiers_would_refuse_or_take_wrongly_is_seen_in_the_text(old, new, code, words):
    assert NATIVE.count(old) >= 1
    (found,) = read(NATIVE.replace(old, new, 1))
    assert found.code == code
    assert words in found.message
    assert len(found.brief) <= 40
