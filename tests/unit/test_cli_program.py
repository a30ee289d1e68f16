"""The command line as its own process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def program(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "nested_rl", *argv], check=False, text=True, capture_output=True, **options
    )


def test_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, nested_rl.cli; print([m for m in ('numpy', 'matplotlib', 'httpx', 'jinja2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert found.stdout.strip() == "[]"


def test_it_runs_as_a_module_too():
    found = program("tasks", "show", "no_such_family")
    assert found.returncode == 2
    assert found.stderr.startswith("nested-rl: unknown family")


def test_a_reader_who_goes_away_gets_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "nested_rl", "tasks"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(60) in (0, 1)


PILOT = """
import sys
from pathlib import Path
from made_run import make_run
from nested_rl import cli, experiment
from nested_rl.report.live import Live

class Fake:
    def run(self, steps, *, seed, out, quiet):
        if not out.exists():
            make_run(out, steps=2, groups_per_step=2, group_size=4)
        with Live(2, mode="lines") as live:
            for step in range(2 if sys.argv[2] == "live" else 0):
                live.on_metrics({"reward/mean": 0.5})
        print("a summary")

    def evaluate(self, families, *, policy, n, seed, out, quiet):
        print(f"evaluated {policy}", file=sys.stderr)
        return self

    def compare(self, other):
        return "+0.5"

experiment.Experiment = Fake
sys.exit(cli.main(["pilot", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize(("when", "unbuffered"), [("live", ""), ("live", "1"), ("after", ""), ("after", "1")])
def test_a_pilot_whose_reader_goes_away_goes_on_to_its_end(tmp_path, when, unbuffered):
    process = subprocess.Popen(
        [sys.executable, "-c", PILOT, tmp_path / "pilot", when],
        cwd=Path(__file__).parent,  # where made_run is
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), told) == (0, "evaluated RUN@best\nevaluated RUN@initial\n")
    assert (tmp_path / "pilot" / "report.html").exists()


WAITING = """
import asyncio, sys
from nested_rl import cli, experiment, sync

async def work():
    try:
        print("begun", flush=True)
        await asyncio.sleep(60)
    finally:
        print("cleaned up", flush=True)

class Fake:
    def run(self, *_, **__):
        sync.run(work())

experiment.Experiment = Fake
sys.exit(cli.main(["pilot"]))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_cleans_up_and_says_by_what_it_was_stopped(tmp_path, sent, code):
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "cleaned up\n")
    assert err.splitlines() == [
        "stopping: what is done is kept, machines are given back; once more to hurry",
        "nested-rl: stopped; run the same command again to resume",
    ]
