"""A run on a Ray cluster is the run on this computer: same jobs, same scores, same rewards."""

import asyncio
import os
import re
import sys
from pathlib import Path

import nested_rl as nrl
from nested_rl.compute import RayCompute

ASKED = {"groups_per_step": 1, "group_size": 3, "eval_every": 0, "quiet": True}


async def test_actors_give_the_rewards_that_this_computer_gives(cluster, tmp_path):
    families = nrl.tasks.load("calc_chain")
    here = await nrl.Experiment(families).run_async(1, out=tmp_path / "here", **ASKED)
    compute = RayCompute(2, gpus=1, address=cluster.address)
    there = await nrl.Experiment(families, compute=compute).run_async(
        1, out=tmp_path / "there", eval_salt_from=tmp_path / "here", **ASKED
    )
    one, other = ([(e.group, e.member, e.reward, e.outcome.post) for e in run.episodes] for run in (here, there))
    assert [(g, m, r, p and p.items) for g, m, r, p in one] == [(g, m, r, p and p.items) for g, m, r, p in other]
    assert any(reward > 0 for _, _, reward, _ in one)
    machines = {e.result.machine for e in there.episodes if e.result}
    assert machines
    assert all(machine.startswith("ray-") for machine in machines)


async def test_the_example_runs_as_it_says(cluster, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "10_ray.py"
    argv = ["--address", cluster.address, "--steps", "1", "--python", sys.executable, "--out", str(tmp_path / "run")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(example), *argv, stdout=asyncio.subprocess.PIPE, env={**os.environ, "HOME": str(tmp_path)}
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert re.search(r"^machines: ray-\d+@", out.decode(), re.MULTILINE)
