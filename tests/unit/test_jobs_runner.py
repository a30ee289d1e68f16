"""The program inside the walls, run here in this process on harmless code: what it answers, and what of it cannot break."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import textwrap
import threading

import pytest

from nested_rl.jobs import runner, wire


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """The runner owns its process; here it must give things back."""
    for name in ("stdout", "stderr", "stdin"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    yield
    sys.modules.pop("environment", None)


@contextlib.contextmanager
def talk(monkeypatch, tmp_path):
    """A served environment: (ask, what it printed). No fixture, since pytest puts another stdout in place after those."""
    log = tmp_path / "log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(runner, "Log", lambda fd, size, kind=runner.Log: kind(descriptor, size))
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=runner.serve, args=(theirs.fileno(),), kwargs={"log_bytes": 20})
    thread.start()

    def ask(**request):
        wire.write(ours.fileno(), wire.pack({"nonce": "n", **request}))
        reply = wire.read(ours.fileno())
        assert reply.pop("nonce") == "n"
        return reply

    yield ask, log.read_text
    ours.close()
    thread.join(60)
    assert not thread.is_alive(), "it ends when the controller hangs up"
    theirs.close()
    os.close(descriptor)


def source(text):
    return textwrap.dedent(text)


def loaded(text, data=None):
    environment = runner.Environment()
    answer = environment.answer({"op": "load", "source": source(text), "data": data or {}})
    return environment, answer


def error_of(text, **request):
    """What goes wrong in a function of this code."""
    environment, answer = loaded(text)
    assert answer == {"value": None}
    return environment.answer(request)["error"]


def test_it_answers_frame_by_frame_and_keeps_what_was_printed_up_to_its_size(monkeypatch, tmp_path):
    code = source(
        """
        print("ten chars")
        def examples(rng, n):
            print("é" * 50)
            return ({"prompt": f"{rng.random():.3f}", "answer": str(i)} for i in range(n + 5))
        def reward(prompt, completion, answer):
            return completion == answer
        """
    )
    with talk(monkeypatch, tmp_path) as (ask, printed):
        assert ask(op="load", source=code, data={}) == {"value": None}
        rows = ask(op="examples", seed=1, n=3)
        assert len(rows["value"]) == 3
        assert rows == ask(op="examples", seed=1, n=3)
        assert ask(op="rewards", rows=[["p", "1", "1"], ["p", "2", "1"]]) == {"value": [1.0, 0.0]}
        assert printed() == "ten chars\n" + "é" * 5


def test_what_is_odd_is_told_and_the_next_question_is_answered(monkeypatch, tmp_path):
    """Lone surrogates are strings for Python: they are sent escaped, and the reader decides."""
    code = (
        "def examples(rng, n): return [{'prompt': chr(0xd800), 'answer': '1'}]\ndef reward(p, c, a): return 10**400\n"
    )
    with talk(monkeypatch, tmp_path) as (ask, _):
        ask(op="load", source=code, data={})
        assert ask(op="examples", seed=0, n=1) == {"value": [["\ud800", "1"]]}
        told = ask(op="rewards", rows=[["p", "c", "a"]])["error"]["message"]
        assert told == "reward returned inf, not a finite number"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("7", "examples returned 7 (int), not a list of rows"),
        ("[7]", "row 0 is 7 (int), not a dict with prompt and answer"),
        ("[{'prompt': 'p'}]", "row 0 has no 'answer'"),
        ("[{'prompt': 'p', 'answer': 2}]", "'answer' of row 0 is 2 (int), not a string"),
        ("[{'prompt': 'p', 'answer': 'a'}, None]", "row 1 is None"),
    ],
)
def test_rows_of_the_wrong_kind_are_named(rows, told):
    error = error_of(f"def examples(rng, n): return {rows}", op="examples", seed=0, n=3)
    assert error["kind"] == "row"
    assert told in error["message"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("'1'", "reward returned '1' (str), not a number"),
        ("float('nan')", "reward returned nan, not a finite number"),
        ("Rude()", "reward returned something (Rude), not a number"),
    ],
)
def test_rewards_of_the_wrong_kind_are_named_with_their_row(value, told):
    code = f"""
    class Rude:
        def __repr__(self):
            raise SystemExit

    def reward(prompt, completion, answer):
        return 1.0 if completion == "good" else {value}
    """
    error = error_of(code, op="rewards", rows=[["p", "good", "a"], ["p", "bad", "a"]])
    assert error == {"kind": "number", "message": told, "row": 1}


def test_a_missing_function_is_named():
    assert "reward is None" in error_of("x = 1", op="rewards", rows=[])["message"]
    assert "examples is 3 (int), not a function" in error_of("examples = 3", op="examples", seed=0, n=1)["message"]


@pytest.mark.parametrize(
    ("code", "kind", "line"),
    [
        ("x = 1\n1 / 0\n", "ZeroDivisionError", 2),
        ("def broken(:\n", "SyntaxError", 1),
        ("\nraise SystemExit(3)\n", "SystemExit", 2),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", 1),
        ("class Rude(Exception):\n    def __str__(self):\n        raise SystemExit\nraise Rude\n", "Rude", 4),
        ("import json\njson.loads('{')\n", "JSONDecodeError", 2),
    ],
)
def test_whatever_the_top_level_raises_is_an_answer_with_its_line(code, kind, line):
    _, answer = loaded(code)
    error = answer["error"]
    assert (error["kind"], error["type"], error["line"]) == ("raised", kind, line)
    assert len(error["message"]) <= 300


def test_a_reward_that_raises_says_for_which_row():
    code = "def reward(prompt, completion, answer):\n    return 1 / len(completion)\n"
    error = error_of(code, op="rewards", rows=[["p", "c", "a"], ["p", "", "a"]])
    assert (error["type"], error["line"], error["row"]) == ("ZeroDivisionError", 2, 1)


def test_only_the_jobs_own_data_can_be_opened_and_only_to_read():
    code = """
    rows = open("data/a.jsonl").read()

    def reward(prompt, completion, answer):
        return float(len(open(*answer.split()).read()))
    """
    environment, answer = loaded(code, data={"data/a.jsonl": "four"})
    assert answer == {"value": None}
    assert environment.answer({"op": "rewards", "rows": [["", "", "data/a.jsonl rt"]]}) == {"value": [4.0]}
    for asked in ("/etc/hostname r", "data/a.jsonl w", "data/../a r"):
        error = environment.answer({"op": "rewards", "rows": [["", "", asked]]})["error"]
        assert error["type"] == "PermissionError"
        assert "only the job's own data can be read: data/a.jsonl" in error["message"]
    _, answer = loaded("open('x')")
    assert "only the job's own data can be read: none" in answer["error"]["message"]


def test_an_author_who_forgets_rng_is_repeatable_all_the_same():
    code = """
    import random
    def examples(rng, n):
        return [{"prompt": str(random.random()), "answer": "1"}]
    """
    environment, _ = loaded(code)
    first = environment.answer({"op": "examples", "seed": 5, "n": 1})
    assert first == environment.answer({"op": "examples", "seed": 5, "n": 1})
    assert first != environment.answer({"op": "examples", "seed": 6, "n": 1})


def test_a_frame_that_is_cut_off_is_the_end():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        whole = wire.pack({"op": "load"})
        wire.write(ours.fileno(), whole + whole[:7])
        ours.shutdown(socket.SHUT_WR)
        assert wire.read(theirs.fileno()) == {"op": "load"}
        assert wire.read(theirs.fileno()) is None
        assert wire.read(theirs.fileno()) is None
