"""environment.py and the data as they are written: each fault with its line, and sound twins that pass."""

from __future__ import annotations

import pytest
from jobs_material import CODE, SURFACE, WITH_DATA, files, giving, rewarding

from nested_rl.jobs.check import check
from nested_rl.jobs.surface import Surface

PLAIN = CODE.replace("from nested_rl.jobkit import make, parse\n", "import json\n")


def found(code: str, surface: Surface = SURFACE, **more: str) -> list[tuple[str, str, str]]:
    return [(p.code, p.where, p.brief) for p in check(files(code=code, **more), surface)]


SOUND = {
    "as the guide has it": CODE,
    "with types and defaults": "def examples(rng, n: int = 8) -> list: ...\ndef reward(prompt, completion, answer, *, x=1): ...\n",
    "with other argument names": "def examples(r, count): ...\ndef reward(question, reply, truth): ...\n",
    "with star arguments": "def examples(*args): ...\ndef reward(*args, **more): ...\n",
    "as lambdas": "examples = lambda rng, n: []\nreward = lambda p, c, a: 1.0\n",
    "made by a decorator or a call": "import functools\nexamples = functools.partial(print)\nreward = str\n",
    "inside if and try": "if True:\n    def examples(rng, n): ...\ntry:\n    reward = int\nexcept ValueError:\n    pass\n",
    "with plain imports": "import re, math\nfrom collections.abc import Iterator\nfrom random import Random\n" + CODE,
    "with the kit as a module": CODE.replace(
        "from nested_rl.jobkit import make, parse", "import nested_rl.jobkit as kit"
    ),
    "with the kit from its package": CODE.replace(
        "from nested_rl.jobkit import make, parse", "from nested_rl import jobkit"
    ),
    "with numbers that only look large": rewarding("return (hash(completion) % (10**9 + 7)) / 2**64"),
    "with a strange escape": rewarding('return float("\\d" in completion)'),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_code_passes(name: str) -> None:
    assert found(SOUND[name]) == []


FAULTS = {
    "syntax": ("def reward(:\n", "environment.syntax", "environment.py:1", "environment.py syntax"),
    "syntax in line 7": (
        CODE.replace("return float(", "return float((("),
        "environment.syntax",
        "environment.py:7",
        "environment.py syntax",
    ),
    "return outside": (CODE + "return 1\n", "environment.syntax", "environment.py:8", "environment.py syntax"),
    "no reward": (
        CODE[: CODE.index("def reward")],
        "environment.missing",
        "environment.py",
        "environment.py has no reward",
    ),
    "misspelt": (
        CODE.replace("def examples", "def example"),
        "environment.missing",
        "environment.py",
        "environment.py has no examples",
    ),
    "two arguments": (
        CODE.replace("(prompt, completion, answer)", "(completion, answer)"),
        "environment.arguments",
        "environment.py:6",
        "reward needs prompt completion answer",
    ),
    "four arguments": (
        CODE.replace("(prompt, completion, answer)", "(prompt, completion, answer, info)"),
        "environment.arguments",
        "environment.py:6",
        "reward needs prompt completion answer",
    ),
    "keyword only": (
        CODE.replace("(rng, n)", "(rng, *, n)", 1),
        "environment.arguments",
        "environment.py:3",
        "examples needs rng n",
    ),
    "swapped": (
        CODE.replace("(prompt, completion, answer)", "(completion, prompt, answer)"),
        "environment.arguments",
        "environment.py:6",
        "reward needs prompt completion answer",
    ),
    "async": (
        CODE.replace("def reward", "async def reward"),
        "environment.async",
        "environment.py:6",
        "reward must not be async",
    ),
    "system": ("import os\n" + CODE, "environment.import", "environment.py:1", "import os not allowed"),
    "network": (
        "from urllib import request\n" + CODE,
        "environment.import",
        "environment.py:1",
        "import urllib not allowed",
    ),
    "processes": (
        rewarding("import subprocess", "return 1.0"),
        "environment.import",
        "environment.py:7",
        "import subprocess not allowed",
    ),
    "threads": ("import threading\n" + CODE, "environment.import", "environment.py:1", "import threading not allowed"),
    "ctypes": ("import ctypes\n" + CODE, "environment.import", "environment.py:1", "import ctypes not allowed"),
    "numpy": ("import numpy as np\n" + CODE, "environment.import", "environment.py:1", "import numpy not allowed"),
    "ourselves": (
        "from nested_rl.tasks import load\n" + CODE,
        "environment.import",
        "environment.py:1",
        "import nested_rl.tasks not allowed",
    ),
    "relative": ("from . import x\n" + CODE, "environment.import", "environment.py:1", "import . not allowed"),
    "kit name": (
        CODE.replace("import make, parse", "import mak, parse"),
        "environment.import",
        "environment.py:1",
        "import mak not allowed",
    ),
    "eval": (rewarding("return eval(completion)"), "environment.name", "environment.py:7", "eval not allowed"),
    "open": (
        giving('return [open("/etc/passwd").read()] * n'),
        "environment.name",
        "environment.py:4",
        "open not allowed",
    ),
    "open by another name": ("read = open\n" + CODE, "environment.name", "environment.py:1", "open not allowed"),
    "digging": (
        rewarding("return len(().__class__.__bases__[0].__subclasses__())"),
        "environment.name",
        "environment.py:7",
        "__subclasses__ not allowed",
    ),
    "huge list": (giving("x = [0] * 10**9", "return x"), "environment.number", "environment.py:4", "number too big"),
    "huge range": (
        giving("return list(range(1000 * 1000 * 1000))"),
        "environment.number",
        "environment.py:4",
        "number too big",
    ),
    "huge power": (giving('return "x" * 9**9**9'), "environment.number", "environment.py:4", "number too big"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_line(name: str) -> None:
    code, *expected = FAULTS[name]
    assert tuple(expected) in found(code)
    assert len(found(code)) <= 2


def test_the_nearest_right_name_is_told() -> None:
    (problem,) = check(files(code=CODE.replace("import make", "import mak")), SURFACE)
    assert "make" in problem.hint
    (problem,) = check(files(code=CODE.replace("nested_rl.jobkit", "nested_rl.jobkti")), SURFACE)
    assert problem.hint == "did you mean nested_rl.jobkit?"
    (problem,) = check(files(code=CODE.replace("def examples", "def exmples")), SURFACE)
    assert problem.hint == "rename exmples to examples"


def test_the_kit_is_refused_where_the_agent_must_write_its_own() -> None:
    (problem,) = check(files(code=CODE), WITH_DATA)
    assert problem.code == "environment.import"
    assert "your own generator" in problem.hint


def test_data_may_be_opened_by_its_name_only() -> None:
    rows = {"data/rows.jsonl": '{"a": 1}\n'}
    good = PLAIN.replace("make(", "open('data/rows.jsonl') and list(").replace("parse(", "str(")
    assert found(good, WITH_DATA, **rows) == []
    for call in ("open('data/other.jsonl')", "open('data/rows.jsonl', 'w')", "open(str())", "open"):
        spoiled = good.replace("open('data/rows.jsonl')", call)
        assert [p[0] for p in found(spoiled, WITH_DATA, **rows)] == ["environment.name"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": 1}\n[1]\n', "data/rows.jsonl:2"),
        ('{"a": 1}\n\n{"a": \n', "data/rows.jsonl:3"),
        ('{"a": NaN}\n', "data/rows.jsonl:1"),
        ("[" * 4000, "data/rows.jsonl:1"),
        ("\n \n", "data/rows.jsonl"),
    ],
)
def test_data_that_is_not_jsonl(text: str, where: str) -> None:
    assert found(PLAIN, WITH_DATA, **{"data/rows.jsonl": text}) == [
        ("files.rows", where, "data/rows.jsonl is not jsonl")
    ]


def test_what_is_too_big_is_not_read() -> None:
    """Its size is told already, when the folder is looked at."""
    sizes = SURFACE.files
    assert found(PLAIN, WITH_DATA, **{"data/rows.jsonl": "[" * (WITH_DATA.files.data_bytes + 1)}) == []
    assert found("(" * (sizes.code_bytes + 1)) == []
    assert found("(" * 100) != []


def test_only_a_near_module_is_suggested() -> None:
    def hint(module: str) -> str:
        (problem,) = check(files(code=f"import {module}\n{CODE}"), SURFACE)
        return problem.hint

    assert hint("jsn") == "did you mean json?"
    assert hint("maths") == "did you mean math?"
    assert hint("numpy").startswith("allowed: ")
    assert hint("datasets").startswith("allowed: ")


@pytest.mark.filterwarnings("error")
def test_parsing_hostile_text_neither_warns_nor_crashes() -> None:
    for text in (
        "(" * 4000,
        "lambda:" * 500,
        "1 if 1 else " * 300 + "1",
        "a" + ".b" * 1900,
        "f'{" * 1000,
        "\x0c\t\\",
        "\0",
    ):
        assert found(text)
    assert found("x = 1 is 1\n" + CODE) == []
