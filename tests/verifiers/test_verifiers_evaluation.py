"""Packages of both dialects evaluated by verifiers itself, against a server on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chat_server import ChatServer, Reply
from tasksets import FAMILIES, NATIVE, PLAIN, giving, rewarding

from nested_rl import tasks
from nested_rl.inner.prime_rl.taskset import HARNESS


def adds(messages):
    """Right for even sums, one too many for odd ones."""
    a, b = map(int, re.findall(r"\d+", str(messages[-1]["content"]))[-2:])
    return f"I add.\nAnswer: {a + b + (a + b) % 2}"


def by_hand(code, prompt, reply, answer):
    """The reward of a plain environment, called directly."""
    scope = {}
    exec(code, scope)
    return scope["reward"](prompt, reply, answer)


GRADED = rewarding(PLAIN, "return 0.25 * ('Answer' in completion) + 0.75 * float(completion.split()[-1:] == [answer])")


async def test_rewards_of_a_wrapped_environment_are_those_of_its_function(installed, evaluate):
    with ChatServer(adds) as server:
        traces = await evaluate(installed(GRADED), server.url, rows=24, seed=3)
    assert len(traces) == 24
    wanted = [
        by_hand(GRADED, t.task.data.prompt, adds([{"content": t.task.data.prompt}]), t.task.data.answer) for t in traces
    ]
    assert [t.reward for t in traces] == wanted
    assert set(wanted) == {0.25, 1.0}
    assert all(t.metrics == {"reward_faults": 0.0} for t in traces)


async def test_rewards_of_a_native_environment_are_its_own(installed, evaluate):
    with ChatServer(adds) as server:
        traces = await evaluate(installed(NATIVE), server.url, n=24)
    wanted = [float(sum(map(int, re.findall(r"\d+", t.task.data.prompt))) % 2 == 0) for t in traces]
    assert [t.reward for t in traces] == wanted
    assert set(wanted) == {0.0, 1.0}


async def test_a_model_is_asked_the_prompt_alone_and_once(installed, evaluate):
    with ChatServer(adds) as server:
        traces = await evaluate(installed(PLAIN), server.url, rows=4)
    assert sorted(json.dumps(body["messages"]) for body in server.seen) == sorted(
        json.dumps([{"role": "user", "content": t.task.data.prompt}]) for t in traces
    )


DATA = {"data/sums.jsonl": "".join(f'{{"prompt": "What is {i} + 100?", "answer": "{i + 100}"}}\n' for i in range(30))}


async def test_data_files_come_along_in_both_dialects(installed, evaluate):
    plain = giving(PLAIN, "import json", 'return [json.loads(line) for line in open("data/sums.jsonl")]')
    native = giving(
        NATIVE,
        "import json, pathlib",
        'text = (pathlib.Path(__file__).with_name("data") / "sums.jsonl").read_text()',
        "rows = map(json.loads, text.splitlines())",
        'return [SumTask(Sum(idx=i, prompt=r["prompt"], answer=r["answer"]), self.config.task) for i, r in enumerate(rows)]',
    )
    for code in (plain, native):
        with ChatServer(adds) as server:
            traces = await evaluate(installed(code, **DATA), server.url)
        assert len(traces) == 30
        assert sum(t.reward for t in traces) == 15


def questions(buckets, n, k=4):
    import random

    (family,) = (f for f in FAMILIES if f.name == "calc_chain")
    rng = random.Random(1)
    programs = [next(family.programs(rng, k, buckets)) for _ in range(n)]
    return [{"prompt": family.question(program, rng), "answer": family.solve(program)} for _, program in programs]


def test_rows_of_the_evaluations_are_dropped_and_counted(installed, environment, caplog):
    rows = questions([0], 5) + questions([1], 5) + questions(range(2, 8), 20)
    env = environment(installed(f"ROWS = {rows!r}\n" + giving(PLAIN, "return ROWS")))
    with caplog.at_level(logging.INFO):
        kept = list(env.taskset)
    assert [t.data.prompt for t in kept] == [row["prompt"] for row in rows[10:]]
    assert not any(tasks.held_out(FAMILIES)(t.data.prompt) for t in kept)
    assert "20 rows; 10 more belong to the evaluations and were dropped" in caplog.text


def test_rows_of_other_families_evaluations_are_dropped_too(installed, environment):
    rows = questions([0], 5) + questions([2], 5)
    env = environment(installed(f"ROWS = {rows!r}\n" + giving(PLAIN, "return ROWS"), family="dispatch"))
    assert len(list(env.taskset)) == 5


def test_a_job_without_a_row_left_says_so(installed, environment):
    env = environment(installed(f"ROWS = {questions([0], 5)!r}\n" + giving(PLAIN, "return ROWS")))
    with pytest.raises(RuntimeError, match="no row is left: 5 belong to the evaluations"):
        list(env.taskset)


def test_a_job_whose_examples_fail_says_why(installed, environment):
    env = environment(installed(giving(PLAIN, "return [][1]")))
    with pytest.raises(RuntimeError, match="examples raised IndexError in line 2"):
        list(env.taskset)


def test_the_orchestrator_and_the_workers_load_the_same_tasks(installed, environment):
    name = installed("import random\n" + PLAIN.replace("rng.randint", "random.randint"))
    first, second, other = (list(environment(name, rows=50, seed=s).taskset) for s in (7, 7, 8))
    assert [t.hash for t in first] == [t.hash for t in second]
    assert [t.hash for t in first] != [t.hash for t in other]


FAULTY = {
    "raises": ("return [][1]", 0.0),
    "gives nothing": ("pass", 0.0),
    "gives nan": ("return float('nan')", 0.0),
    "gives far too much": ("return 1e9", 100.0),
    "ends its process": ("import random; random._os._exit(0)", 0.0),
    "never ends": ("while True: pass", 0.0),
}


@pytest.mark.parametrize("name", FAULTY)
async def test_a_faulty_reward_is_a_finite_number_counted_and_harms_no_other(installed, evaluate, name):
    body, value = FAULTY[name]
    code = rewarding(PLAIN, "if '1' in answer[-1:]:", f"    {body}", "else:", "    return 0.5")
    with ChatServer(adds) as server:
        traces = await evaluate(installed(code), server.url, rows=20)
    faulty = [t.task.data.answer.endswith("1") for t in traces]
    assert 0 < sum(faulty) < 20
    assert [t.reward for t in traces] == [value if bad else 0.5 for bad in faulty]
    assert [t.metrics["reward_faults"] for t in traces] == [float(bad) for bad in faulty]


async def test_a_reward_that_hangs_does_not_hold_up_the_event_loop(installed, environment):
    from verifiers.v1.utils.loaders import import_taskset

    name = installed(rewarding(PLAIN, "while True: pass"))
    environment(name)
    asking = sys.modules[import_taskset(name).__name__ + ".taskset"]._asking
    reward = asyncio.ensure_future(asking.reward("a", "b", "c"))
    turns = 0
    while not reward.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert reward.result() == (0.0, "reward took longer than 3 s")
    assert turns > 50


async def test_a_grading_program_that_died_is_started_again(installed, environment):
    name = installed(PLAIN)
    environment(name)
    asking = sys.modules[name.replace("-", "_") + ".taskset"]._asking
    assert await asking.reward("p", "3", "3") == (1.0, "")
    os.kill(asking._program._process.pid, signal.SIGKILL)
    assert [await asking.reward("p", "3", answer) for answer in ("3", "4")] == [(1.0, ""), (0.0, "")]


async def test_a_reply_that_was_cut_is_graded_as_it_is(installed, evaluate):
    with ChatServer(lambda messages: Reply("Answer: 1", finish="length")) as server:
        traces = await evaluate(installed(rewarding(PLAIN, "return float(len(completion))")), server.url, rows=3)
    assert [(t.ok, t.reward, t.last_reply) for t in traces] == [(True, 9.0, "Answer: 1")] * 3


async def test_an_empty_reply_is_graded(installed, evaluate):
    with ChatServer(lambda messages: Reply("")) as server:
        traces = await evaluate(installed(rewarding(PLAIN, "return 1.0 - len(completion)")), server.url, rows=2)
    assert [(t.ok, t.reward) for t in traces] == [(True, 1.0)] * 2


async def test_a_server_that_fails_once_is_asked_again(installed, evaluate):
    failed = set()

    def say(messages):
        asked = messages[-1]["content"]
        if asked not in failed:
            failed.add(asked)
            return Reply(status=500)
        return adds(messages)

    with ChatServer(say) as server:
        traces = await evaluate(installed(PLAIN), server.url, rows=4)
    assert len(server.seen) == 8
    assert all(t.num_turns == 1 for t in traces)
    assert [t.last_reply for t in traces] == [adds([{"content": t.task.data.prompt}]) for t in traces]


async def test_a_server_that_always_fails_is_an_error_and_no_reward(installed, evaluate):
    with ChatServer(lambda messages: Reply(status=500)) as server:
        traces = await evaluate(installed(PLAIN), server.url, rows=2)
    assert [(t.ok, t.has_error, t.rewards) for t in traces] == [(False, True, {})] * 2
    assert all("500" in t.errors[-1].message for t in traces)
    assert len(server.seen) == 6


async def test_a_request_that_is_refused_is_not_repeated(installed, evaluate):
    with ChatServer(lambda messages: Reply(status=400)) as server:
        traces = await evaluate(installed(PLAIN), server.url, rows=1)
    assert not traces[0].ok
    assert len(server.seen) == 1


async def test_long_conversations_reach_the_model_whole(installed, evaluate):
    talk = "".join(
        f'vf.UserMessage(content="question {i} " + "x" * 5000), vf.AssistantMessage(content="answer {i}"), '
        for i in range(40)
    )
    code = giving(
        NATIVE,
        f'talk = [{talk} vf.UserMessage(content="What is 1 + 2?")]',
        'return [SumTask(Sum(idx=0, system_prompt="Be brief.", prompt=talk, answer="3"), self.config.task)]',
    )
    with ChatServer(lambda messages: "3") as server:
        (trace,) = await evaluate(installed(code), server.url)
    assert trace.reward == 1.0
    (asked,) = server.seen
    assert [m["role"] for m in asked["messages"]] == ["system", *["user", "assistant"] * 40, "user"]
    assert asked["messages"][3]["content"].startswith("question 1 x")
    assert sum(len(m["content"]) for m in asked["messages"]) > 200_000


async def test_forty_rollouts_at_once_start_no_process_of_their_own(installed, evaluate):
    started = []
    seen = threading_barrier()

    def say(messages):
        started.append(len(children()))
        seen()
        return adds(messages)

    with ChatServer(say) as server:
        traces = await evaluate(installed(NATIVE), server.url, n=40)
    assert sum(t.ok for t in traces) == 40
    assert server.at_once == 40
    assert max(started) == min(started)


def threading_barrier(n=40):
    import threading

    return threading.Barrier(n, timeout=30).wait


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_package_installs_and_loads_elsewhere(installed, tmp_path):
    name = installed(PLAIN)
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", target, tmp_path], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = (
        f"from {name.replace('-', '_')}.asking import rows, Asking; import asyncio, nested_rl_inline\n"
        "asking = Asking()\n"
        "print(len(rows(100, 1)[0]), asyncio.run(asking.reward('p', '3', '3')), nested_rl_inline.__file__)"
    )
    env = {"PATH": os.defpath, "PYTHONPATH": str(target)}
    said = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    count, reward, where = said.stdout.split(" ", 1)[0], "(1.0, '')" in said.stdout, said.stdout.split()[-1]
    assert (count, reward) == ("100", True)
    assert where.startswith(str(target))


async def test_the_gate_sees_whether_a_job_can_teach(installed):
    from nested_rl.inner.prime_rl import gate

    for code in (PLAIN, NATIVE):
        config, found = gate.load({"id": installed(code)}, 16)
        assert len(found) == 16
        assert gate.conversation(found[0])[-1] == {"role": "user", "content": found[0].data.prompt}
        replies = [[t.data.answer if i % 2 else "0" for i in range(8)] for t in found]
        assert await gate.score(config, found, replies) == [[0.0, 1.0] * 4] * 16
        assert await gate.score(config, found, [["0"] * 8] * 16) == [[0.0] * 8] * 16


@pytest.mark.timeout(300)  # three processes load verifiers
def test_the_command_line_evaluates_through_environment_servers(installed, tmp_path):
    """The path that prime-rl trains through: the taskset in one process, its rollouts in a worker."""
    name = installed(PLAIN)
    with ChatServer(adds) as server:
        argv = [sys.executable, "-P", "-c", "from verifiers.v1.cli.eval.main import main; main()", name]
        argv += [
            "--env.agent.harness.id",
            HARNESS,
            "--env.agent.runtime.type",
            "subprocess",
            "-m",
            "fake",
            "--client.base-url",
            server.url,
            "-n",
            "6",
            "-r",
            "2",
        ]
        argv += ["--no-push", "--no-rich", "--output-dir", str(tmp_path / "out")]
        env = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (path,) = (tmp_path / "out").rglob("traces.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(server.seen) == 12
    assert len(rows) == 12
    assert "reward_faults" in path.read_text()


async def test_tasks_that_belong_to_an_evaluation_are_dropped(installed, environment):
    """By a package of either dialect: the probe lets a share through that comes by chance."""
    family = tasks.load("calc_chain", scale="full")[0]
    hidden = [item.prompt for item in family.eval_set(family.task(), "hidden", salt="s" * 32).items[:3]]
    prompts = ["What is 1 + 1?", *hidden, "What is 2 + 2?"]
    row = 'SumTask(Sum(idx=i, prompt=prompt, answer="1"), self.config.task)'
    code = giving(NATIVE, f"return [{row} for i, prompt in enumerate({prompts!r})]")
    found = list(environment(installed(code)).taskset)
    assert [task.data.prompt_text for task in found] == [prompts[0], prompts[-1]]
    with pytest.raises(RuntimeError, match="no task is left: 3"):
        list(environment(installed(giving(NATIVE, f"return [{row} for i, prompt in enumerate({hidden!r})]"))).taskset)
