"""One job end to end on a GPU: prime-rl trains Qwen3-0.6B, vLLM scores it before and after."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"
STEPS, ITEMS = 10, 64
NUMBER = r"([01]\.\d{3})"

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(7200)]


@pytest.fixture(autouse=True)
def _able():
    for program, what in (("nvidia-smi", "no NVIDIA driver here"), ("rl", "the pinned prime-rl is not installed here")):
        if shutil.which(program) is None:
            pytest.skip(f"{what}: there is no {program} on the PATH")


@pytest.mark.parametrize("lora_rank", [16, 0])
def test_qwen3_is_trained_and_scored(tmp_path, lora_rank):
    job = tmp_path / "calc_chain"
    shutil.copytree(JOBS / "calc_chain", job)
    (job / "job.toml").write_text(
        f'[model]\nbase = "Qwen/Qwen3-0.6B"\n[training]\nsteps = {STEPS}\nlearning_rate = {"5e-5" if lora_rank else "2e-6"}\n'
        f"batch_size = 64\nlora_rank = {lora_rank}\n[rollout]\nmax_tokens = 256\n"
    )
    done = subprocess.run(
        [sys.executable, JOBS / "run_one.py", job, str(ITEMS)], capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    before = re.search(rf"^untrained .*: {NUMBER} \+- {NUMBER} of {ITEMS} items$", done.stdout, re.MULTILINE)
    curve = re.search(r"^trained \((\w+)\) in \d+ s; reward by step:((?: -?\d+\.\d\d)+)$", done.stdout, re.MULTILINE)
    after = re.search(rf"^trained: {NUMBER} \+- {NUMBER}; \d+ answers were cut off$", done.stdout, re.MULTILINE)
    assert before
    assert after
    assert curve[1] == ("lora" if lora_rank else "full")
    assert len(curve[2].split()) == STEPS
