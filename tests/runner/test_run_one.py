"""The script that runs one job on this computer: as it is with stand-ins for prime-rl and vLLM, and without a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runner_play import HERE, make_base, make_programs, terms

from nested_rl.inner.prime_rl import PrimeRLTrainer
from nested_rl.scorers import VLLMEngine, VLLMScorer

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"
STANDIN = ROOT / "tests" / "unit" / "vllm_standin.py"
BASE = "Qwen/Qwen3-0.6B"
LORA_RANK = {"lora": 16, "full": 0}
STARTS = """#!/bin/sh
cat "$2" {folder}/stand_in.toml > scratch/with.toml
exec {python} -I -S {here}/stand_in_rl.py @ scratch/with.toml
"""


@pytest.fixture(params=["lora", "full"])
def kind(request):
    return request.param


@pytest.fixture
def computer(tmp_path, monkeypatch, kind):
    """With a driver that knows of one card of 24 GB, with prime-rl and a base."""
    folder = make_programs(tmp_path / "bin")
    base = make_base(tmp_path / "bases" / BASE)
    (folder / "rl").write_text(STARTS.format(python=sys.executable, folder=folder, here=HERE))
    (folder / "stand_in.toml").write_text(f'\n[stand_in]\nkind = "{kind}"\nbase = "{base}"\n')
    (folder / "nvidia-smi").write_text(
        f'#!/bin/sh\ncase "$*" in *=memory.total*) echo 24564;; *) exec cat {folder}/gpus;; esac\n'
    )
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("NESTED_RL_BASES", str(tmp_path / "bases"))
    monkeypatch.setenv("NESTED_RL_BASES_LOCK", str(tmp_path / "bases.lock.json"))


@pytest.mark.usefixtures("computer")
async def test_it_scores_trains_and_scores_again(kind, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(JOBS)
    import run_one

    job = tmp_path / "calc_chain"
    shutil.copytree(JOBS / "calc_chain", job)
    (job / "job.toml").write_text(
        f'[model]\nbase = "{BASE}"\n[training]\nsteps = 3\nlearning_rate = 1e-6\nlora_rank = {LORA_RANK[kind]}\n'
    )
    log = tmp_path / "vllm.log"
    engine = VLLMEngine(python=sys.executable, argv=(sys.executable, str(STANDIN), str(log), "none"))
    scorer = VLLMScorer(engine=engine, start_s=60.0)
    assert await run_one.run(job, 8, PrimeRLTrainer(terms=terms()), scorer) == 0
    untrained, trained, after = capsys.readouterr().out.splitlines()
    assert untrained == f"untrained {BASE}: 0.000 +- 0.000 of 8 items"  # the stand-in only repeats the question
    assert trained.startswith(f"trained ({kind}) in ")
    assert trained.endswith("reward by step: 0.10 0.20 0.30")
    assert after == "trained: 0.000 +- 0.000; 0 answers were cut off"
    started = [row for row in map(json.loads, log.read_text().splitlines()) if "pid" in row]
    assert len(started) == 2
    assert ("--lora-modules" in started[1]["argv"]) == (kind == "lora")


def test_without_a_gpu_it_says_so(tmp_path):
    script = [sys.executable, JOBS / "run_one.py", JOBS / "calc_chain"]
    done = subprocess.run(script, capture_output=True, text=True, env={"PATH": str(tmp_path)}, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "the machines have no GPU" in done.stdout
