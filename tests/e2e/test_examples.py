"""Every example does, with few steps, what it says: run as a user runs it, in a folder of its own, and its output read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nested_rl as nrl

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from openai_server import Server, answer

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = (
    "00_outer_loop_flat.py",
    "01_local_pilot.py",
    "02_custom_reward.py",
    "03_custom_family/run.py",
    "04_custom_backend.py",
    "05_heldout_evaluation.py",
    "06_resume.py",
    "07_llm_agent_openai.py",
    "08_cloud_pilot7.py",
    "12_published_adapter.py",
)
PLUGIN = EXAMPLES / "11_plugin"
ELSEWHERE = {"09_ssh_hosts.py": "tests/fleet/test_ssh_run.py", "10_ray.py": "tests/ray/test_ray_run.py"}
"""Examples that a tier of its own runs."""
STEP = re.compile(r"^step +1/1  reward (\d\.\d+)  ", re.MULTILINE)
SCORES = r"nano-m 0\.\d\d, nano-s 0\.\d\d"

pytestmark = pytest.mark.timeout(300)


def _writes_a_job(body) -> dict:
    """What a large agent says next: two files, then the job is handed in."""
    job = (
        '[model]\nbase = "nano-m"\n[training]\nsteps = 8\nlearning_rate = 1e-3\nbatch_size = 128\n'
        "group_size = 8\n[rollout]\ntemperature = 1.0\n"
    )
    environment = (
        "from nested_rl.jobkit import make, parse\ndef examples(rng, n):\n    return make('calc_chain', rng, n, k=2)\n"
        "def reward(prompt, completion, answer):\n    return float(parse(completion) == answer)\n"
    )
    lines = (
        ("write_file", {"path": "job.toml", "content": job}),
        ("write_file", {"path": "environment.py", "content": environment}),
        ("submit_job", {}),
    )
    return (
        answer("", [lines[sum(m["role"] == "assistant" for m in body["messages"])]])
        if "tools" in body
        else answer("ok")
    )


@pytest.fixture
def llm():
    """The server of a large agent."""
    with Server(_writes_a_job) as server:
        yield server


@pytest.fixture
def said(tmp_path, request) -> str:
    """What an example prints; `said` is parametrized with its script and arguments, where URL is the server `llm`."""
    script, *arguments = request.param.split()
    arguments = [request.getfixturevalue("llm").url if given == "URL" else given for given in arguments]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def example(call: str):
    """Run this script with these arguments."""
    return pytest.mark.parametrize("said", [call], indirect=True, ids=[call.partition(" ")[0]])


def test_every_example_is_here():
    there = {
        p.relative_to(EXAMPLES).as_posix() for p in EXAMPLES.rglob("*.py") if p.name[0].isdigit() or p.name == "run.py"
    }
    assert there == {*SCRIPTS, *ELSEWHERE}
    assert all(name in (ROOT / test).read_text(encoding="utf-8") for name, test in ELSEWHERE.items())
    own = Path(__file__).read_text(encoding="utf-8")
    assert all(f'@example("{script} ' in own for script in SCRIPTS)


@example("00_outer_loop_flat.py 1")
def test_the_flat_loop_trains_jobs_and_the_agent(said, tmp_path):
    (reward,) = STEP.findall(said)
    valid = int(re.search(r"valid (\d+) of 32", said)[1])
    assert 0 < float(reward) < 1
    assert valid > 0
    assert list(tmp_path.iterdir()) == []  # no journal, as promised


def test_the_flat_loop_stays_short():
    assert len((EXAMPLES / SCRIPTS[0]).read_text(encoding="utf-8").splitlines()) < 150


@example("01_local_pilot.py 1")
def test_the_pilot_prints_its_curve_and_writes_a_report(said, tmp_path):
    (reward,) = re.findall(r"^step  0  reward (0\.\d{3})  valid at first try 0\.\d\d$", said, re.MULTILINE)
    row = json.loads((tmp_path / "runs/example-pilot/metrics.jsonl").read_text())
    assert float(reward) == pytest.approx(row["reward/mean"], abs=5e-4)
    assert "<html" in (tmp_path / said.splitlines()[-1]).read_text(encoding="utf-8")


@example("02_custom_reward.py 1")
def test_parts_of_ones_own_reward_have_curves(said):
    row = dict(re.findall(r"'reward/(\w+)': (-?[\d.]+)", said.splitlines()[-1]))
    parts = {name: float(value) for name, value in row.items()}
    assert set(parts) == {"mean", "valid", "uplift", "work"}
    assert parts["mean"] == pytest.approx(parts["valid"] + parts["uplift"] + parts["work"], abs=2e-3)
    assert parts["work"] < 0 < parts["valid"]


@example("03_custom_family/run.py 1")
def test_a_family_of_ones_own_is_trained_on(said, tmp_path):
    questions = re.search(r"^for training: (.+)$", said, re.MULTILINE)[1].split(", ")
    (family,) = nrl.tasks.load(EXAMPLES / "03_custom_family" / "paper_chain")
    for question in questions:
        prompt, answer = question.split()
        assert family.solve(family.read(prompt)) == answer
    assert re.search(rf"^untrained: {SCORES}$", said, re.MULTILINE)
    assert re.search(r"^best job: nano-[sm] from 0\.\d\d to [01]\.\d\d on hidden questions$", said, re.MULTILINE)
    used = [e.outcome for e in nrl.Run(tmp_path / "runs/example-family").episodes if e.outcome.valid]
    assert any("paper_chain" in outcome.families for outcome in used)  # by `make`, in the sandbox


@example("04_custom_backend.py 1")
def test_every_hold_of_a_machine_goes_through_the_backend(said, tmp_path):
    held = re.findall(r"^held local-[01] for \d+\.\d\d s$", said, re.MULTILINE)
    row = json.loads((tmp_path / "runs/example-backend/metrics.jsonl").read_text())
    assert len(held) >= row["jobs/run"] + 2  # and the baselines of two families
    assert STEP.search(said)


@example("05_heldout_evaluation.py 1 4")
def test_both_sides_are_evaluated_on_the_same_held_out_tasks(said, tmp_path):
    trained, untrained, difference = said.splitlines()[-3:]
    assert trained.startswith("runs/example-pilot@best: reward 0.")
    assert untrained.startswith("runs/example-pilot@initial: reward 0.")
    assert re.match(r"difference: reward [+-]0\.\d{3} \[[+-]0\.\d{3}, [+-]0\.\d{3}\] \(n=4, paired\)", difference)
    reports = [
        json.loads(path.read_text()) for path in (tmp_path / "runs/example-pilot/evals").glob("triage-*/report.json")
    ]
    assert {row["task"] for row in reports[0]["rows"]} == {row["task"] for row in reports[-1]["rows"]}
    assert {row["family"] for report in reports for row in report["rows"]} == {"triage"}


@example("06_resume.py 2")
def test_a_run_goes_on_and_another_experiment_is_refused(said, tmp_path):
    half, whole, refused = (re.search(pattern, said) for pattern in (r"steps=1\)", r"steps=2\)", r"refused: .*"))
    assert half
    assert whole
    assert "(seed: was 0, now 1)" in refused[0]
    events = [json.loads(line) for line in (tmp_path / "runs/example-resume/journal.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e["event"] == "step.done"] == [0, 1]


@example("07_llm_agent_openai.py small URL 1 3")
def test_a_large_agent_is_compared_with_the_nano_agent(said, llm, tmp_path):
    large, nano, difference = said.splitlines()[-3:]
    assert large.startswith(f"openai:small@{llm.url}: reward 0.")
    assert "valid 1.00" in large
    assert nano.startswith("runs/example-pilot@best: reward 0.")
    assert "(n=3, paired)" in difference
    guides = {body["messages"][1]["content"] for body in llm.seen if len(body["messages"]) > 1}
    assert len(guides) == 3  # one task a family, each with the whole guide
    assert all("environment.py" in guide and len(guide) > 2000 for guide in guides)
    assert len(llm.seen) == 1 + 3 * 3  # a check, and three turns an episode
    (folder,) = (tmp_path / "runs/example-pilot/evals").glob("*-openai-small-*")
    assert len(list((folder / "episodes").iterdir())) == 3


@example("08_cloud_pilot7.py --steps 6 --run")
def test_the_cloud_pilot_is_planned_and_ends_where_keys_are_missing(said, tmp_path):
    text = " ".join(said.split())
    assert text.startswith("Plan: 6 steps of 5 groups of 8 episodes, at most 2 steps off-policy, at most 16 pods")
    assert re.search(r"pods \$[\d.]+ \$[\d.]+ \$[\d.]+ agent and training \$51\.67 \$[\d.]+ \$[\d.]+ all", text)
    assert all(name in text for name in ("predicts nothing", "TINKER_API_KEY", "RUNPOD_API_KEY"))
    assert list(tmp_path.iterdir()) == []


@example("12_published_adapter.py URL 2 small other")
def test_an_adapter_is_compared_with_its_base_on_the_held_out_family(said, llm):
    adapter, base, difference = said.splitlines()[-3:]
    assert adapter.startswith(f"openai:small@{llm.url}: reward ")
    assert base.startswith(f"openai:other@{llm.url}: reward ")
    assert "(n=2, paired)" in difference
    assert {body["model"] for body in llm.seen} == {"small", "other"}
    assert all(body["temperature"] == 1.0 for body in llm.seen if len(body["messages"]) > 1)


@pytest.fixture
def installed(tmp_path) -> dict[str, str]:
    """The environment of a program for which the plug-in is installed, without pip, which would want a network."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in project["entry-points"].items()
    ]
    (told / "entry_points.txt").write_text("\n".join(groups))
    return {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": f"{told.parent}:{PLUGIN / 'src'}"}


def _done(argv: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_plugin_is_found_by_its_name_and_keeps_the_contract(installed, tmp_path):
    command = [sys.executable, "-c", "import sys; from nested_rl.cli import main; sys.exit(main())"]
    assert STEP.search(_done([*command, "run", PLUGIN / "run.toml"], tmp_path, installed))
    assert 'name = "nested_rl_pausable.PausableCompute"' in (tmp_path / "runs/example-plugin/run.toml").read_text(
        encoding="utf-8"
    )
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", PLUGIN, "-c", PLUGIN / "pyproject.toml"]
    assert re.search(r"\d+ passed", _done([sys.executable, "-m", "pytest", *options, PLUGIN], tmp_path, installed))
