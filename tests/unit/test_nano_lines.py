"""The program's side of the line protocol: what happens inside a program cannot reach its input or output."""

import json
import subprocess
import sys

import pytest

from nested_rl.errors import MachineLost
from nested_rl.nano.lines import ask

PROGRAM = """
import os, subprocess, sys
from nested_rl.nano.lines import Lines

def answer(question):
    print("a print")
    os.write(1, b"a write to descriptor 1" + bytes([10]))
    subprocess.run([sys.executable, "-S", "-c", "import os; os.write(1, b'a child' + bytes([10]))"])
    assert sys.stdin.read() == ""
    return {"twice": 2 * question["number"]}

Lines.claim().serve(answer)
"""


def test_only_answers_are_answered():
    questions = [{"nonce": "a", "number": 21}, {"nonce": "b", "number": "x"}, {"nonce": "c", "nummer": 1}]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(json.dumps(q) + "\n" for q in questions),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"twice": 42, "nonce": "a"},
        {"twice": "xx", "nonce": "b"},
        {"error": "KeyError: 'number'", "nonce": "c"},
    ]
    assert done.stderr.count("a child") == 3
    assert "a write to descriptor 1" in done.stderr


async def test_a_program_that_does_not_start_is_a_lost_machine():
    class Bare:
        id = "bare"

        async def resident(self, key, argv, *, env=None):
            raise FileNotFoundError("no python here")

    with pytest.raises(MachineLost, match="no python here"):
        await ask(Bare(), "sampler", ("python",), {}, timeout_s=1)
