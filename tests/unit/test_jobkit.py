"""The kit that nano-scale jobs import."""

import random
import subprocess
import sys

import pytest

from nested_rl import jobkit, tasks
from nested_rl.errors import NestedRLError


@pytest.mark.parametrize("name", tasks.names())
def test_make_never_yields_held_out_questions(name):
    (family,) = tasks.load(name, scale="nano")
    rows = jobkit.make(name, random.Random(1), 4000)
    assert all(set(row) == {"prompt", "answer"} for row in rows)
    assert {tasks.bucket(name, family.key(row["prompt"])) for row in rows} == set(range(2, 8))


def test_make_is_repeatable_and_takes_lengths():
    assert jobkit.make("ledger", random.Random(4), 20) == jobkit.make("ledger", random.Random(4), 20)
    assert jobkit.make("ledger", random.Random(4), 20) != jobkit.make("ledger", random.Random(5), 20)
    lengths = [
        {len(r["prompt"]) for r in jobkit.make("calc_chain", random.Random(0), 200, k)}
        for k in (None, 1, (1, 2), [2, 3])
    ]
    assert lengths == [{9}, {5}, {5, 7}, {7, 9}]
    assert jobkit.make("triage", random.Random(0), 0) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("calc_chan", 1), "did you mean 'calc_chain'"),
        (("../etc", 1), "unknown family"),
        (("calc_chain", -1), "n must be"),
        (("calc_chain", 1.5), "n must be"),
        (("calc_chain", 1, 9), "k must be"),
        (("calc_chain", 1, (2, 1)), "k must be"),
        (("calc_chain", 1, (1, 2, 3)), "k must be"),
        (("calc_chain", 1, "3"), "k must be"),
    ],
)
def test_wrong_use_says_what_to_do(arguments, said):
    name, n, *k = arguments
    with pytest.raises(NestedRLError, match=said):
        jobkit.make(name, random.Random(0), n, *k)


def test_unknown_family_is_a_lookup_error():
    with pytest.raises(LookupError):
        jobkit.make("nope", random.Random(0), 1)


@pytest.mark.parametrize(("text", "answer"), [("72>6.", "6"), ("72>6", "6"), (">abcd.", "abcd"), ("01>2f.", "2f"), ("", ""), ("6.", ""), (">.", ""),
                                              ("7>2>6.", ""), ("ü>ü", ""), ("9" * 5000, ""), ("x>" + "9" * 5000, "9" * 5000)])  # fmt: skip
def test_parse(text, answer):
    assert jobkit.parse(text) == answer


def test_the_kit_is_light_and_warm_means_no_more_files():
    code = """
import random, sys, pathlib, builtins
from nested_rl import jobkit
assert "attrs" not in sys.modules and "numpy" not in sys.modules, "import"
jobkit.warm()
assert not {"numpy", "jinja2", "httpx", "cattrs"} & set(sys.modules)
def refuse(*a, **k): raise OSError("no files any more")
builtins.open = pathlib.Path.open = pathlib.Path.glob = pathlib.Path.is_dir = refuse
for name in ("calc_chain", "triage"):
    assert len(jobkit.make(name, random.Random(0), 5)) == 5
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
