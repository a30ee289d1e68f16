"""PrimeRLTrainer from validation to checkpoint, by the suite that every inner trainer passes, with a stand-in for prime-rl."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from attrs import evolve
from runner_play import HERE, make_base, make_programs, terms

from nested_rl.clock import SystemClock
from nested_rl.compute.local import LocalCompute
from nested_rl.inner.prime_rl import PrimeRLTrainer, preflight
from nested_rl.inner.prime_rl.launch import launch
from nested_rl.inner.prime_rl.shelf import Shelf
from nested_rl.testing import InnerTrainerSuite
from nested_rl.types import Draft, Need, Task

BASE = "Qwen/Qwen3-0.6B"
JOB = f"""\
[model]
base = "{BASE}"
[training]
steps = 2
learning_rate = 1e-6
lora_rank = 0
"""
CODE = """\
def examples(rng, n):
    return [{"prompt": f"What is {a} + 1?", "answer": str(a + 1)} for a in (rng.randint(10, 10**6) for _ in range(n))]

def reward(prompt, completion, answer):
    return float(completion.strip().endswith(answer))
"""
STARTS = """#!/bin/sh
# Like prime-rl, it first loads the environment; then it follows a play that the TOML does not tell.
set -e
{python} -I -S $(find env -path '*/job/environment.py')
cat "$2" {folder}/stand_in.toml > scratch/with.toml
exec {python} -I -S {here}/stand_in_rl.py @ scratch/with.toml
"""


@pytest.fixture(scope="module")
def trainer():
    made = PrimeRLTrainer(bases=(BASE,), terms=terms())
    yield made
    asyncio.run(made.close())


class TestPrimeRLTrainer(InnerTrainerSuite):
    @pytest.fixture
    def programs(self, tmp_path, monkeypatch):
        folder = make_programs(tmp_path / "bin")
        base = make_base(tmp_path / "bases" / BASE)
        (folder / "rl").write_text(STARTS.format(python=sys.executable, folder=folder, here=HERE))
        (folder / "stand_in.toml").write_text(f'\n[stand_in]\nkind = "full"\nbase = "{base}"\n')
        (folder / "nvidia-smi").write_text(
            f'#!/bin/sh\ncase "$*" in *=memory.total*) echo 24564;; *) exec cat {folder}/gpus;; esac\n'
        )
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("NESTED_RL_BASES", str(tmp_path / "bases"))
        monkeypatch.setenv("NESTED_RL_BASES_LOCK", str(tmp_path / "bases.lock.json"))
        return folder

    @pytest.fixture
    def inner(self, trainer, programs):
        return trainer

    @pytest.fixture
    async def machine(self, programs):
        compute = LocalCompute(1)
        async with compute.machine(Need(gpus=1)) as machine:
            card = preflight.Gpu(index=0, name="NVIDIA RTX A5000", total_mib=24_564, used_mib=3)
            preflight._KNOWN[machine] = preflight.Facts(
                program=str(programs / "rl"), versions=dict(preflight.PINNED), gpus=(card,), disk_gib=100.0
            )
            yield machine
        await compute.close()

    @pytest.fixture
    def draft(self):
        return Draft(
            task=Task(id="t", family="calc_chain", difficulty=4), files={"job.toml": JOB, "environment.py": CODE}
        )

    @pytest.fixture
    def broken(self, draft):
        return evolve(draft, files={**draft.files, "environment.py": CODE + "\n1 / 0\n"})

    async def test_a_checkpoint_is_a_model_with_everything_from_its_base(
        self, inner, machine, draft, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(inner, "_shelf", None)
        inner.keep_in(tmp_path / "weights")
        checkpoint = await inner.train(await self._job(inner, draft), machine)
        assert (tmp_path / "weights" / checkpoint.digest / "model.safetensors").is_file()
        folder = Path(checkpoint.path)
        assert (checkpoint.kind, checkpoint.base, len(checkpoint.curve)) == ("full", BASE, 2)
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
        assert (folder / "tokenizer.json").read_text() == "the base's"
        assert not (folder / "secret.txt").exists()
        assert checkpoint.digest
        assert "RTX A5000" in checkpoint.log

    async def test_the_best_few_full_fine_tunes_are_kept(self, inner, machine, draft, tmp_path, programs):
        shelf = Shelf(tmp_path / "weights", best=2, clock=SystemClock())
        play = (programs / "stand_in.toml").read_text()
        kept = []
        for steps, reward in enumerate(
            (0.2, 0.5, 0.1, 0.9), 2
        ):  # the stand-in's weights differ by how many steps they took
            (programs / "stand_in.toml").write_text(f"{play}rewards = {[reward] * steps}\n")
            files = {**draft.files, "job.toml": JOB.replace("steps = 2", f"steps = {steps}")}
            job = await self._job(inner, evolve(draft, files=files))
            ended = await launch(machine, await inner.order(job.spec, machine), terms=terms())
            kept.append(await shelf.take(machine, ended, full=True, within_s=30.0))
        assert [path is None for path in kept] == [False, False, True, False]
        assert {path.name for path in (tmp_path / "weights").iterdir() if path.is_dir()} == {kept[1].name, kept[3].name}
        assert (kept[3] / "model.safetensors").is_file()
        assert json.loads((tmp_path / "weights" / "rewards.json").read_text()) == {kept[1].name: 0.5, kept[3].name: 0.9}
        gone = evolve(ended, path=f"{ended.path}-gone", digest="f" * 64)
        assert await shelf.take(machine, gone, full=False, within_s=30.0) is None
