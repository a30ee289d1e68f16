"""A run on SSH hosts is the run on this computer: same jobs, same scores, same rewards."""

import asyncio
import os
import sys
from pathlib import Path

import nested_rl as nrl
from nested_rl.compute import SSHCompute

ASKED = {"groups_per_step": 2, "group_size": 3, "eval_every": 0, "quiet": True}


async def test_two_hosts_give_the_rewards_that_this_computer_gives(sshds, tmp_path):
    families = nrl.tasks.load("calc_chain", "dispatch")
    here = await nrl.Experiment(families).run_async(1, out=tmp_path / "here", **ASKED)
    compute = SSHCompute([one.host() for one in await sshds(2)])
    there = await nrl.Experiment(families, compute=compute).run_async(
        1, out=tmp_path / "there", eval_salt_from=tmp_path / "here", **ASKED
    )
    one, other = ([(e.group, e.member, e.reward, e.outcome.post) for e in run.episodes] for run in (here, there))
    assert [(g, m, r, p and p.items) for g, m, r, p in one] == [(g, m, r, p and p.items) for g, m, r, p in other]
    assert any(reward > 0 for _, _, reward, _ in one)
    machines = {e.result.machine for e in there.episodes if e.result}
    assert machines
    assert all("@127.0.0.1:" in machine for machine in machines)


async def test_the_example_runs_as_it_says(sshds, tmp_path):
    (one,) = await sshds(1)
    host = one.host()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{one.port} {one.host_key}\n")
    argv = [host.address, "--steps", "1", "--python", sys.executable, "--key", host.key]
    example = Path(__file__).parents[2] / "examples" / "09_ssh_hosts.py"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(example),
        *argv,
        "--known-hosts",
        str(tmp_path / "known"),
        "--out",
        str(tmp_path / "run"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert f"machines: {host.address}\n" in out.decode()
