"""Hostile and broken environment.py files, run for real: each ends as a typed fault, and nothing gets out or stays behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs_material import CODE

from nested_rl.jobs.sandbox import (
    EnvironmentCrashed,
    EnvironmentMisbehaved,
    EnvironmentTimeout,
    Limits,
    SandboxUnavailable,
    Zygote,
)

ROW = {"prompt": "c1+1?", "completion": ">2.", "answer": "2"}
QUICK = Limits(cpu_s=1, memory_mib=256, call_s=20.0)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture(scope="module", params=["namespaces", "seccomp", "limits"])
def any_zygote(request: pytest.FixtureRequest) -> Iterator[Zygote]:
    with Zygote(strongest=request.param) as zygote:
        if zygote.level != request.param:
            pytest.skip(f"{request.param} is not available here")
        yield zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """The strongest there is here, with the system-call filter at least."""
    with Zygote() as zygote:
        if zygote.level == "limits":
            pytest.skip("only limits are available here")
        yield zygote


def code(text: str) -> dict[str, str]:
    return {"environment.py": textwrap.dedent(text)}


def rewarded(zygote: Zygote, body: str, limits: Limits = QUICK) -> list[float]:
    """What a reward with this body gives for ROW."""
    source = "import sys\ndef reward(prompt, completion, answer):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    with zygote.spawn({"environment.py": source}, limits) as environment:
        return environment.rewards([ROW])


def descendants(pid: int) -> set[int]:
    children: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if entry.name.isdigit():
            children.setdefault(int(fields[1]), set()).add(int(entry.name))
    found: set[int] = set()
    todo = [pid]
    while todo:
        new = children.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def assert_gone(pidfds: list[int]) -> None:
    """All processes behind these handles end within the hang bound."""
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 20.0)[0], "a process was left behind"
        os.close(pidfd)


# ---------------------------------------------------------------- what works


def test_a_sound_environment_answers(any_zygote: Zygote) -> None:
    with any_zygote.spawn({"environment.py": CODE}) as environment:
        rows = environment.examples(seed=3, n=5)
        assert len(rows) == 5
        assert rows == environment.examples(seed=3, n=5)
        assert rows != environment.examples(seed=4, n=5)
        right = [{**row, "completion": f"1>{row['answer']}."} for row in rows]
        wrong = [{**row, "completion": ">z."} for row in rows]
        assert environment.rewards(right + wrong) == [1.0] * 5 + [0.0] * 5
        assert environment.rewards([]) == []


def test_generators_flags_and_whole_numbers_are_welcome(zygote: Zygote) -> None:
    source = """
        import itertools
        def examples(rng, n):
            for i in itertools.count():
                yield {"prompt": str(i), "answer": str(rng.random()), "extra": object()}
        def reward(prompt, completion, answer):
            return completion == answer if prompt else 3
    """
    with zygote.spawn(code(source)) as environment:
        assert [row["prompt"] for row in environment.examples(0, 3)] == ["0", "1", "2"]
        assert environment.rewards([ROW, {**ROW, "completion": "2"}, {**ROW, "prompt": ""}]) == [0.0, 1.0, 3.0]


def test_randomness_without_rng_and_sets_are_repeatable_across_processes(zygote: Zygote) -> None:
    source = """
        import random
        def examples(rng, n):
            return [{"prompt": str(random.random()), "answer": "".join({"a", "b", "c", "d", "e"})} for _ in range(n)]
    """
    with (
        Zygote(kit=False) as fresh,
        zygote.spawn(code(source)) as one,
        zygote.spawn(code(source)) as other,
        fresh.spawn(code(source)) as third,
    ):
        assert one.examples(1, 4) == other.examples(1, 4) == third.examples(1, 4)


def test_data_is_read_from_memory(any_zygote: Zygote) -> None:
    source = """
        import json
        ROWS = [json.loads(line) for line in open("data/rows.jsonl", encoding="utf-8")]
        def examples(rng, n):
            with open("data/rows.jsonl") as file:
                assert len(file.readlines()) == 2
            return ROWS[:n]
    """
    files = {**code(source), "data/rows.jsonl": '{"prompt": "p", "answer": "é"}\n' * 2}
    with any_zygote.spawn(files) as environment:
        assert environment.examples(0, 9) == [{"prompt": "p", "answer": "é"}] * 2
    with pytest.raises(EnvironmentCrashed, match="PermissionError"):
        any_zygote.spawn(code("open('/etc/hostname')"))


def test_prints_go_to_a_log_that_stays_small(any_zygote: Zygote) -> None:
    source = """
        import sys
        print("hello", "\\ud800")
        def reward(prompt, completion, answer):
            for _ in range(20_000):
                print("spam" * 10, file=sys.stderr)
            return 1.0
    """
    with any_zygote.spawn(code(source), Limits(log_bytes=1_000)) as environment:
        assert environment.rewards([ROW]) == [1.0]
        assert environment.log.startswith("hello \\ud800\nspam")
        assert len(environment.log) == 1_000
    assert environment.log.startswith("hello")


def test_several_threads_share_one_zygote(zygote: Zygote) -> None:
    def work(seed: int) -> float:
        with zygote.spawn({"environment.py": CODE}) as environment:
            rows = environment.examples(seed, 4)
            return sum(environment.rewards([{**row, "completion": f">{row['answer']}."} for row in rows]))

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(work, range(24))) == [4.0] * 24


# ---------------------------------------------------------------- broken code


@pytest.mark.parametrize(
    ("source", "raised", "line"),
    [
        ("x = 1\nraise ValueError('no')\n", "ValueError", 2),
        ("import numpyy\n", "ModuleNotFoundError", 1),
        ("raise SystemExit(0)\n", "SystemExit", 1),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", 1),
        ("exit(0)\n", None, 1),
        ("def f(): f()\nf()\n", "RecursionError", 1),
        ("x = [bytearray(10**6) for _ in range(6000)]\n", "MemoryError", 1),
        ("def f(:\n", "SyntaxError", 1),
        ("class E(Exception):\n    def __str__(self): raise self\nraise E\n", "E", 3),
        ("raise type('N' * 10**6, (Exception,), {})\n", "N" * 80, 1),
    ],
)
def test_what_is_raised_at_the_top_is_reported(zygote: Zygote, source: str, raised: str | None, line: int) -> None:
    with pytest.raises(EnvironmentCrashed) as caught:
        zygote.spawn({"environment.py": source}, QUICK)
    assert caught.value.during == "environment"
    assert raised is None or caught.value.raised == raised
    assert caught.value.line == line
    assert len(str(caught.value)) < 1_000


def test_what_a_function_raises_is_reported_and_the_next_call_works(zygote: Zygote) -> None:
    source = """
        def examples(rng, n):
            return {}["x"]
        def reward(prompt, completion, answer):
            return 1.0 / len(completion)
    """
    with zygote.spawn(code(source)) as environment:
        with pytest.raises(EnvironmentCrashed, match="examples raised KeyError in line 3") as caught:
            environment.examples(0, 1)
        assert caught.value.during == "examples"
        with pytest.raises(EnvironmentCrashed, match="ZeroDivisionError") as caught:
            environment.rewards([ROW, {**ROW, "completion": ""}])
        assert caught.value.row == 1
        assert environment.rewards([ROW]) == [pytest.approx(1 / 3)]


@pytest.mark.parametrize(
    "body",
    [
        "return 'good'",
        "return None",
        "return float('nan')",
        "return float('-inf')",
        "return 10**400",
        "return 1j",
        "return [1.0]",
        "return reward",
    ],
)
def test_a_reward_must_be_a_finite_number(zygote: Zygote, body: str) -> None:
    with pytest.raises(EnvironmentMisbehaved, match="number") as caught:
        rewarded(zygote, body)
    assert (caught.value.kind, caught.value.during, caught.value.row) == ("number", "reward", 0)


@pytest.mark.parametrize(
    ("expression", "match"),
    [
        ("None", "not a list of rows"),
        ("['ab']", "not a dict"),
        ("[{'prompt': 'x'}]", "no 'answer'"),
        ("[{'prompt': 'x', 'answer': 5}]", "not a string"),
        ("[{'prompt': b'x', 'answer': '5'}]", "not a string"),
        ("[{'prompt': '\\ud800', 'answer': '5'}]", "not Unicode"),
    ],
)
def test_rows_must_be_prompts_and_answers(zygote: Zygote, expression: str, match: str) -> None:
    with zygote.spawn({"environment.py": f"examples = lambda rng, n: {expression}\n"}) as environment:
        with pytest.raises(EnvironmentMisbehaved, match=match) as caught:
            environment.examples(0, 2)
        assert caught.value.kind == "row"


def test_a_missing_function_is_a_fault_of_the_agent(zygote: Zygote) -> None:
    with zygote.spawn({"environment.py": "reward = 3\n"}) as environment:
        with pytest.raises(EnvironmentMisbehaved, match="not a function"):
            environment.rewards([ROW])
        with pytest.raises(EnvironmentMisbehaved, match="not a function"):
            environment.examples(0, 1)


# ---------------------------------------------------------------- too slow, too much


def test_endless_loops_run_out_of_processor_time(any_zygote: Zygote) -> None:
    with pytest.raises(EnvironmentTimeout, match="processor time") as caught:
        any_zygote.spawn(code("while True:\n    pass\n"), QUICK)
    assert caught.value.during == "environment"


def test_a_sleeping_reward_is_killed_at_its_deadline_and_stays_dead(any_zygote: Zygote) -> None:
    source = "import time\ndef reward(prompt, completion, answer):\n    time.sleep(600)\n"
    with any_zygote.spawn(code(source)) as environment:
        with pytest.raises(EnvironmentTimeout, match=r"reward took longer than 0\.2 s"):
            environment.rewards([ROW], timeout_s=0.2)
        with pytest.raises(EnvironmentTimeout):
            environment.rewards([ROW])


def test_a_backtracking_pattern_is_killed(zygote: Zygote) -> None:
    with pytest.raises(EnvironmentTimeout):
        rewarded(zygote, "import re\nreturn float(bool(re.match(r'(a+)+$', 'a' * 60 + '!')))")


def test_a_reply_that_is_too_large_is_refused(zygote: Zygote) -> None:
    source = "examples = lambda rng, n: [{'prompt': 'x' * 200_000, 'answer': '1'}]\n"
    environment = zygote.spawn({"environment.py": source}, Limits(reply_bytes=100_000))
    with environment, pytest.raises(EnvironmentMisbehaved, match="more than can be sent"):
        environment.examples(0, 1)


# ---------------------------------------------------------------- attacks


def test_ending_the_process_is_no_verdict(any_zygote: Zygote) -> None:
    with pytest.raises(EnvironmentCrashed, match="exit status 0"):
        rewarded(any_zygote, "sys.modules['os']._exit(0)")
    with pytest.raises(EnvironmentCrashed, match="ended its process"):
        any_zygote.spawn(code("import os\nos._exit(0)\n"), QUICK)


def test_no_second_process_and_no_thread(any_zygote: Zygote) -> None:
    bomb = "os = sys.modules['os']\nwhile True:\n    os.fork()\n"
    with pytest.raises(EnvironmentCrashed, match=r"PermissionError|BlockingIOError"):
        rewarded(any_zygote, bomb)
    thread = "import _thread\n_thread.start_new_thread(print, ())\n"
    with pytest.raises(EnvironmentCrashed, match="can't start new thread"):
        any_zygote.spawn(code(thread), QUICK)


def test_no_programs(any_zygote: Zygote) -> None:
    with pytest.raises(EnvironmentCrashed, match=r"PermissionError|FileNotFoundError|BlockingIOError"):
        rewarded(any_zygote, "os = sys.modules['os']\nreturn os.posix_spawn('/bin/true', ['true'], {})")


def test_no_network(zygote: Zygote) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(EnvironmentCrashed, match=r"PermissionError|Network is unreachable"):
            rewarded(zygote, f"import socket\nsocket.socket().connect(('127.0.0.1', {port}))\nreturn 1.0")
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_no_files(zygote: Zygote, tmp_path: Path) -> None:
    secret = tmp_path / "salt"
    secret.write_text("secret")
    for call in (
        f"open('{secret}')",
        f"sys.modules['io'].open('{secret}', 'w')",
        f"sys.modules['os'].unlink('{secret}')",
        f"sys.modules['os'].mkdir('{tmp_path}/new')",
        "sys.modules['os'].listdir('/')",
        "sys.modules['os'].listdir('.')",
        "sys.modules['io'].open('/proc/self/environ')",
    ):
        with pytest.raises(EnvironmentCrashed) as caught:
            rewarded(zygote, f"{call}\nreturn 1.0")
        assert caught.value.raised in {"PermissionError", "FileNotFoundError"}, str(caught.value)
    assert secret.read_text() == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["salt"]


def test_no_secrets_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "sk-canary")
    with Zygote(kit=False) as fresh:
        body = "print(dict(sys.modules['os'].environ), sys.argv, sys.path)\nreturn 1.0"
        source = "import sys\ndef reward(prompt, completion, answer):\n" + textwrap.indent(body, "    ")
        with fresh.spawn({"environment.py": source}) as environment:
            assert environment.rewards([ROW]) == [1.0]
            assert "canary" not in environment.log.lower()
            assert "PATH" in environment.log


def test_signals_reach_nobody(zygote: Zygote) -> None:
    for target in ("os.getppid()", "1", "0", "-1"):
        with pytest.raises(EnvironmentCrashed, match=r"PermissionError|ProcessLookupError"):
            rewarded(zygote, f"os = sys.modules['os']\nos.kill({target}, 9)\nreturn 1.0")
    assert rewarded(zygote, "return 1.0") == [1.0]
    assert zygote.restarts == 0


FORGED = {
    "without its nonce": 'wire.pack({"nonce": "", "value": [9.0]})',
    "without anything": "wire.pack([])",
    "that is no JSON": "bytes([0, 0, 0, 2]) + b'{]'",
    "with NaN": "bytes([0, 0, 0, 3]) + b'NaN'",
    "that never ends": "bytes([0, 0, 0, 9]) + b'1'",
    "that is enormous": "bytes([255] * 4)",
    "too deep": "bytes([0, 1, 0, 0]) + b'[' * 65536",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_reply_is_refused(zygote: Zygote, name: str) -> None:
    body = f"wire = sys.modules['nested_rl.jobs.wire']\nwire.write(3, {FORGED[name]})\nsys.modules['os']._exit(0)"
    with pytest.raises((EnvironmentMisbehaved, EnvironmentCrashed)):
        rewarded(zygote, body)


@pytest.mark.parametrize("value", ["[True]", "['1']", "[]", "[1.0, 1.0]", "{}", "None", "[1e999]"])
def test_a_value_of_the_wrong_kind_is_refused_even_with_the_right_nonce(zygote: Zygote, value: str) -> None:
    body = f"""
        runner = sys.modules['nested_rl.jobs.runner']
        runner.Environment._rewards = lambda self, request: {value}
        return 1.0
    """
    source = "import sys\ndef reward(prompt, completion, answer):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    with zygote.spawn({"environment.py": source}, QUICK) as environment:
        assert environment.rewards([ROW]) == [1.0]
        with pytest.raises(EnvironmentMisbehaved):
            environment.rewards([ROW])


def test_a_forged_error_cannot_confuse_the_controller(zygote: Zygote) -> None:
    forged = """{"kind": ["x"], "type": {}, "message": 5, "line": "7", "row": True}"""
    body = f"""
        runner = sys.modules['nested_rl.jobs.runner']
        runner.Environment.answer = lambda self, request: {{"error": {forged}}}
        return 1.0
    """
    source = "import sys\ndef reward(prompt, completion, answer):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    with zygote.spawn({"environment.py": source}, QUICK) as environment:
        environment.rewards([ROW])
        with pytest.raises(EnvironmentMisbehaved) as caught:
            environment.rewards([ROW])
        assert caught.value.row is None


# ---------------------------------------------------------------- nothing stays behind


@LINUX
def test_closing_leaves_no_process(any_zygote: Zygote) -> None:
    any_zygote.spawn({"environment.py": CODE}).close()
    before = descendants(os.getpid())
    environment = any_zygote.spawn({"environment.py": CODE})
    (new,) = descendants(os.getpid()) - before
    pidfd = os.pidfd_open(new)
    environment.close()
    assert_gone([pidfd])
    assert descendants(os.getpid()) == before
    with pytest.raises(SandboxUnavailable, match="closed"):
        environment.rewards([ROW])


@LINUX
def test_an_environment_is_in_namespaces_of_its_own_with_nothing_to_see() -> None:
    with Zygote(kit=False) as zygote:
        if zygote.level != "namespaces":
            pytest.skip("namespaces are not available here")
        before = descendants(os.getpid())
        with zygote.spawn({"environment.py": "reward = len\n"}):
            (pid,) = descendants(os.getpid()) - before
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            for name in ("user", "net", "pid", "mnt", "ipc"):
                if os.geteuid() == 0:  # another user may not look
                    assert Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink()
            if os.geteuid() == 0:
                assert list(Path(f"/proc/{pid}/root").iterdir()) == []
                assert len(list(Path(f"/proc/{pid}/fd").iterdir())) == 4
            assert status["CapEff"] == "0" * 16
            assert status["NoNewPrivs"] == "1"
            assert status["NSpid"].split()[-1] == "1"


@LINUX
def test_a_killed_zygote_is_restarted_and_its_environments_are_no_fault_of_the_agent() -> None:
    with Zygote(kit=False) as zygote:
        environment = zygote.spawn({"environment.py": CODE.replace("from nested_rl.jobkit import make, parse\n", "")})
        assert zygote._nursery is not None
        assert zygote._nursery._process is not None
        family = [os.pidfd_open(pid) for pid in descendants(zygote._nursery._process.pid)]
        os.kill(zygote._nursery._process.pid, signal.SIGKILL)
        assert_gone(family)
        with pytest.raises(SandboxUnavailable):
            environment.rewards([ROW])
        assert rewarded(zygote, "return 1.0") == [1.0]
        assert zygote.restarts == 1


@LINUX
def test_a_dying_controller_takes_everything_along() -> None:
    script = """
        import sys
        from nested_rl.jobs.sandbox import Zygote
        environment = Zygote(kit=False).spawn({"environment.py": "reward = lambda p, c, a: __import__('time').sleep(600)"})
        print("ready", flush=True)
        environment.rewards([{"prompt": "", "completion": "", "answer": ""}], timeout_s=600)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"ready\n"
        family = descendants(controller.pid)
        assert len(family) >= 2
        pidfds = [os.pidfd_open(pid) for pid in family]
        controller.kill()
    assert_gone(pidfds)


def test_an_interpreter_that_does_not_start_is_our_fault() -> None:
    with Zygote(python="/nonexistent/python") as zygote, pytest.raises(SandboxUnavailable, match="No such file"):
        zygote.spawn({"environment.py": CODE})
    with Zygote(python="/bin/false") as zygote, pytest.raises(SandboxUnavailable, match="does not start"):
        zygote.spawn({"environment.py": CODE})
