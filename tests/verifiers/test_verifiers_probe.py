"""The native dialect's probe: for each way in which a taskset fails, a faulty one, told by code; its twin passes."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from attrs import evolve
from tasksets import FAMILIES, NATIVE, PLAIN, SURFACE, config, draft, giving, rewarding

from nested_rl.errors import MissingExtra
from nested_rl.inner.prime_rl import native
from nested_rl.inner.prime_rl.probe import LIMITS, Probe


@pytest.fixture(scope="module")
def probe():
    probe = Probe(SURFACE, limits=evolve(LIMITS, cpu_s=1))
    yield probe
    asyncio.run(probe.close())


DATA = {"data/sums.jsonl": "".join(f'{{"prompt": "What is {i} + 1?", "answer": "{i + 1}"}}\n' for i in range(100))}
FROM_DATA = "import json\nfrom pathlib import Path\n" + giving(
    NATIVE,
    'lines = (Path(__file__).with_name("data") / "sums.jsonl").read_text().splitlines()',
    "rows = [json.loads(line) for line in lines]",
    'return [SumTask(Sum(idx=i, prompt=r["prompt"], answer=r["answer"]), self.config.task) for i, r in enumerate(rows)]',
)
TASK = "SumTask(Sum(idx={i}, prompt={p}, answer={a}), self.config.task)"


def tasks(i="i", p='f"What is {i} + 1?"', a="str(i + 1)", n=64):
    return f"return [{TASK.format(i=i, p=p, a=a)} for i in range({n})]"


SOUND = {
    "as in the guide": (NATIVE, {}),
    "postponed annotations": ("from __future__ import annotations\n" + NATIVE, {}),
    "a generator": (
        giving(NATIVE, "for i in range(100):", f"    yield {TASK.format(i='i', p='str(i)', a='str(i)')}"),
        {},
    ),
    "endless, and says so": (
        giving(
            NATIVE,
            "import itertools",
            "for i in itertools.count():",
            f"    yield {TASK.format(i='i', p='str(i)', a='str(i)')}",
        ).replace("    def load", "    INFINITE = True\n\n    def load"),
        {},
    ),
    "its own data": (FROM_DATA, DATA),
    "a dict of rewards": (
        rewarding(NATIVE, 'return {"right": float((trace.last_reply or "").endswith(self.data.answer))}'),
        {},
    ),
    "two rewards and a metric": (
        NATIVE.replace(
            "    @vf.reward(weight=1.0)",
            "    @vf.reward(weight=0.1)\n    async def short(self, task, trace) -> float:\n        return float(0 < len(trace.last_reply or '') < 99)\n\n"
            "    @vf.metric\n    async def length(self, trace) -> float:\n        return len(trace.last_reply or '')\n\n    @vf.reward(weight=1.0)",
        ),
        {},
    ),
    "an answer that is a number": (
        giving(
            NATIVE.replace("answer: str", "answer: int").replace("[self.data.answer]", "[str(self.data.answer)]"),
            tasks(a="i + 1"),
        ),
        {},
    ),
    "an answer of another name": (NATIVE.replace("answer", "total"), {}),
    "messages": (giving(NATIVE, tasks(p='[vf.UserMessage(content=f"What is {i} + 1?")]')), {}),
    "it awaits": (
        "import asyncio\n"
        + rewarding(
            NATIVE,
            "await asyncio.sleep(0.001)",
            'return float((trace.last_reply or "").split()[-1:] == [self.data.answer])',
        ),
        {},
    ),
}


@pytest.mark.parametrize("name", SOUND)
async def test_a_sound_taskset_is_valid(probe, name):
    code, data = SOUND[name]
    found = await probe.examine(draft(code, **data), config(), FAMILIES)
    assert found.problems == ()
    assert found.notes["rows/probed"] == 64


FAULTS = {
    # numbers are those of the failure kinds: import, hang, rows, reward values, slowness, memory, escape
    "1 syntax": (NATIVE + "def f(:\n", "environment.syntax", "not Python"),
    "2 missing module": ("import numpyy\n" + NATIVE, "environment.import", "'numpyy'"),
    "3 v0 style": (
        "import verifiers as vf\ndef load_environment():\n    pass\n",
        "environment.missing",
        "earlier verifiers",
    ),
    "3 an environment": (
        NATIVE.replace('["SumTaskset"]', '["SumTaskset", "E"]') + "class E(vf.Env):\n    pass\n",
        "environment.raised",
        "an environment of its own",
    ),
    "3 the earlier names": (
        NATIVE.replace("import verifiers.v1 as vf", "import verifiers as vf"),
        "environment.import",
        "earlier verifiers",
    ),
    "31 a word pays": (
        rewarding(
            NATIVE,
            "said = trace.last_reply or ''",
            "return 1.0 if 'answer' in said.lower() else float(said.split()[-1:] == [self.data.answer])",
        ),
        "reward.junk",
        "earns 1, the right answer 1",
    ),
    "3 no __all__": (NATIVE.replace("__all__ =", "all ="), "environment.missing", "__all__"),
    "3 no taskset": (NATIVE.replace('["SumTaskset"]', '["SumTask"]'), "environment.raised", "exports no Taskset"),
    "4 two tasksets": (
        NATIVE.replace('__all__ = ["SumTaskset"]', 'class B(SumTaskset):\n    pass\n__all__ = ["SumTaskset", "B"]'),
        "environment.raised",
        "exports 2 Taskset",
    ),
    "5 hangs at import": ("while True: pass\n" + NATIVE, "environment.slow", "processor time"),
    "5 hangs in load": (giving(NATIVE, "while True: pass"), "examples.slow", "load() used all"),
    "6 network at load": (giving(NATIVE, "from datasets import load_dataset"), "environment.import", "'datasets'"),
    "6 network, hidden": (
        giving(NATIVE, "import random as r", "r._os.open('/etc/passwd', 0)", tasks()),
        "examples.raised",
        "PermissionError",
    ),
    "7 no tasks": (giving(NATIVE, "return []"), "examples.count", "load() gave 0 rows"),
    "8 endless, and does not say so": (
        giving(NATIVE, "i = 0", "while True:", f"    yield {TASK.format(i='i', p='str(i)', a='str(i)')}", "    i += 1"),
        "examples.slow",
        "more than 10000 tasks",
    ),
    "9 dicts": (giving(NATIVE, 'return [{"prompt": "a", "answer": "1"}] * 64'), "examples.row", "not a vf.Task"),
    "10 no prompt": (giving(NATIVE, tasks(p="None")), "examples.prompt", "prompt is empty"),
    "10 empty answer": (giving(NATIVE, tasks(a="''")), "examples.answer", "answer is empty"),
    "10 no field for the answer": (
        NATIVE.replace("    answer: str", "    pass")
        .replace(", answer=str(a + b)", "")
        .replace("[self.data.answer]", "['1']"),
        "examples.row",
        "no field with the right answer",
    ),
    "11 all the same": (giving(NATIVE, tasks(p='"What is 1 + 1?"', a='"2"')), "examples.same", "only 1 different"),
    "11 too few": (giving(NATIVE, tasks(n=20)), "examples.count", "load() gave 20 rows"),
    "12 no reward": (NATIVE.replace("    @vf.reward(weight=1.0)\n", ""), "environment.missing", "no reward"),
    "13 not async": (NATIVE.replace("async def right", "def right"), "environment.arguments", "awaits it"),
    "14 wrong names": (
        NATIVE.replace("right(self, trace: vf.Trace)", "right(self, completion, answer)"),
        "environment.arguments",
        "takes completion, answer",
    ),
    "15 none": (rewarding(NATIVE, "pass"), "reward.raised", "TypeError"),
    "15 text": (rewarding(NATIVE, 'return "good"'), "reward.raised", "ValueError"),
    "16 nan": (rewarding(NATIVE, 'return float("nan")'), "reward.number", "nan"),
    "16 inf": (rewarding(NATIVE, 'return float("inf")'), "reward.number", "inf"),
    "17 odd digits": (
        rewarding(
            NATIVE,
            'words = (trace.last_reply or "").split() or [""]',
            "return float(words[-1].isdigit() and int(words[-1]) == int(self.data.answer))",
        ),
        "reward.raised",
        "ValueError",
    ),
    "17 empty reply": (
        rewarding(NATIVE, "return float(trace.last_reply.split()[-1] == self.data.answer)"),
        "reward.raised",
        "IndexError in line",
    ),
    "18 constant": (rewarding(NATIVE, "return 1.0"), "reward.flat", "a wrong one as much"),
    "19 endless reward": (rewarding(NATIVE, "while True: pass"), "reward.slow", "processor time"),
    "19 sleeps": (
        "import time\n"
        + rewarding(
            NATIVE,
            "time.sleep(0.3 * ((trace.last_reply or '') == self.data.answer))",
            "return float((trace.last_reply or '').split()[-1:] == [self.data.answer])",
        ),
        "reward.slow",
        "a reward takes",
    ),
    "19 backtracking": (
        "import re\n"
        + rewarding(
            NATIVE,
            "return float(bool(re.match(r'(a+)+$', trace.last_reply or '')) or (trace.last_reply or '').split()[-1:] == [self.data.answer])",
        ),
        "reward.slow",
        "processor time",
    ),
    "20 memory": (
        giving(NATIVE, "x = [bytearray(10**6) for _ in range(6000)]", tasks()),
        "examples.raised",
        "MemoryError",
    ),
    "21 noise": (
        rewarding(NATIVE, "return random.random() + float(self.data.answer in (trace.last_reply or ''))"),
        "reward.random",
        "different rewards",
    ),
    "22 huge scale": (
        rewarding(NATIVE, "return 1e14 * ((trace.last_reply or '').split()[-1:] == [self.data.answer])"),
        "reward.large",
        "1e+14",
    ),
    "23 inverted": (
        rewarding(NATIVE, "return float((trace.last_reply or '').split()[-1:] != [self.data.answer])"),
        "reward.inverted",
        "more than",
    ),
    "24 ends the process": (giving(NATIVE, "random._os._exit(0)"), "examples.ended", "exit status 0"),
    "24 forged verdict": (
        "import random\nprint('{\"value\": null}')\nrandom._os.write(3, b'\\0\\0\\0\\2{}')\n" + NATIVE,
        "environment.ended",
        "no proper reply",
    ),
    "30 held-out questions": ("", "examples.held_out", "belong to the evaluations"),
    "31 empty reply pays": (
        rewarding(NATIVE, "return float(not trace.last_reply or trace.last_reply.split()[-1:] == [self.data.answer])"),
        "reward.junk",
        "an empty reply earns",
    ),
    "32 processes": ("import subprocess\n" + NATIVE, "environment.import", "'subprocess'"),
    "32 processes through asyncio": (
        "import asyncio\n" + rewarding(NATIVE, "p = await asyncio.create_subprocess_exec('ls')", "return float(1)"),
        "environment.name",
        "create_subprocess_exec",
    ),
    "32 inner modules": (
        "from verifiers.v1.utils import loaders\n" + NATIVE,
        "environment.import",
        "verifiers.v1.utils",
    ),
    "32 the runtime": (
        NATIVE.replace("right(self, trace: vf.Trace)", "right(self, trace, runtime)"),
        "environment.name",
        "runtime",
    ),
    "32 files": (giving(NATIVE, "open('/etc/passwd')", tasks()), "examples.raised", "only the job's own data"),
    "34 not JSON": (
        NATIVE.replace("    answer: str", "    answer: str\n    more: object = None").replace(
            "answer=str(a + b))", "answer=str(a + b), more=print)"
        ),
        "examples.row",
        "is not JSON",
    ),
    "34 nan in the data": (
        NATIVE.replace("    answer: str", "    answer: str\n    more: float = float('nan')"),
        "examples.row",
        "is not JSON",
    ),
    "34 too big": (
        NATIVE.replace("    answer: str", "    answer: str\n    more: str = 'x' * 100_000"),
        "examples.prompt",
        "characters; at most",
    ),
    "35 remembers": (
        "CALLS = []\n" + giving(NATIVE, "CALLS.append(1)", tasks(p='f"What is {i} + {len(CALLS)}?"')),
        "examples.random",
        "different rows",
    ),
}


def held_out_rows(n):
    """A taskset of questions that belong to the evaluations."""
    import random

    (family,) = (f for f in FAMILIES if f.name == "calc_chain")
    rng = random.Random(1)
    programs = [next(family.programs(rng, 4, [0, 1])) for _ in range(n)]
    return [(family.question(program, rng), family.solve(program)) for _, program in programs]


UNSEEN = {"6 network, hidden", "24 ends the process", "24 forged verdict"}
"""Had the checks of the text not seen these, the sandbox would still hold them."""


@pytest.mark.parametrize("name", FAULTS)
async def test_each_failure_is_told_by_code(probe, name, monkeypatch):
    code, expected, words = FAULTS[name]
    if name in UNSEEN:
        monkeypatch.setattr(native, "reaches", lambda _: ())
    if name.startswith("30"):
        code = f"ROWS = {held_out_rows(64)!r}\n" + giving(NATIVE, tasks(p="ROWS[i][0]", a="ROWS[i][1]"))
    found = await probe.examine(draft(code), config(), FAMILIES)
    assert expected in [p.code for p in found.problems], found.problems
    (first, *rest) = [p for p in found.problems if p.code == expected]
    assert words in first.message
    assert first.where.startswith("environment.py")
    assert len(rest) <= 1


ADVICE = {
    "3 no taskset": '__all__ = ["YourTaskset"]',
    "4 two tasksets": '__all__ = ["YourTaskset"]',
    "9 dicts": "YourTask(YourData(",
    "10 no field for the answer": "answer: str",
    "11 too few": "at least 64 tasks",
    "15 none": "a finite number",
    "18 constant": "self.data.answer",
    "35 remembers": "random.Random(self.config.seed)",
}


@pytest.mark.parametrize("name", ADVICE)
async def test_the_advice_is_that_of_this_dialect(probe, name):
    code, expected, _ = FAULTS[name]
    (found, *_) = (await probe.examine(draft(code), config(), FAMILIES)).problems
    assert found.code == expected
    assert ADVICE[name] in found.hint
    assert "pydantic.dev" not in found.message


async def test_settings_of_a_taskset_reach_it_and_unknown_ones_are_named(probe):
    def given(**settings):
        return config(prime_rl={"orchestrator": {"train": {"source": {"env": {"taskset": settings}}}}})

    few = await probe.examine(draft(NATIVE), given(n=8), FAMILIES)
    assert [p.message for p in few.problems] == ["load() gave 8 rows"]
    (unknown,) = (await probe.examine(draft(NATIVE), given(size=8), FAMILIES)).problems
    assert unknown.code == "prime_rl.argument"
    assert "size" in unknown.message


async def test_a_prompt_must_leave_room_for_its_completion(probe):
    code = giving(NATIVE, tasks(p="'x ' * 600 + str(i)"))
    assert (await probe.examine(draft(code), config(), FAMILIES)).problems == ()
    short = config(training={"seq_len": 512}, rollout={"max_tokens": 256})
    assert [p.code for p in (await probe.examine(draft(code), short, FAMILIES)).problems] == ["examples.prompt"]


async def test_another_interpreter_may_be_the_one_with_verifiers():
    there = Path(sys.executable)
    probe = Probe(SURFACE, python=str(there.parent / ".." / there.parent.name / there.name))
    assert (await probe.examine(draft(NATIVE), config(), FAMILIES)).problems == ()
    await probe.close()


async def test_a_missing_interpreter_says_which_extra_to_install():
    probe = Probe(SURFACE, python="/usr/bin/false")
    with pytest.raises(MissingExtra, match=r"nested-rl\[prime-rl\]"):
        await probe.examine(draft(NATIVE), config(), FAMILIES)
    await probe.close()


async def test_how_long_a_warm_probe_takes(probe, capsys):
    await probe.examine(draft(NATIVE), config(), FAMILIES)
    times = []
    for code in (PLAIN, NATIVE):
        started = time.perf_counter()
        for _ in range(5):
            assert (await probe.examine(draft(code), config(), FAMILIES)).problems == ()
        times.append((time.perf_counter() - started) / 5)
    with capsys.disabled():
        print(f"\nwarm probe, wall seconds: plain {times[0]:.3f}, native {times[1]:.3f}")
