"""The whole nested loop in one file, top to bottom: no Experiment, no queue, no journal.

    python examples/00_outer_loop_flat.py [steps]

The parts are the library's: task families, the tool-using harness, the nano agent and its trainer, the sandboxed check of
a job, GRPO on a small model, the hidden evaluation, the reward. What connects them is here: a for loop.

Left out, so that the idea is visible, and what each would buy:

  several machines and a queue      jobs run one by one on one machine; the library runs them side by side
  groups in flight (off-policy)     a step waits for its slowest job; the library samples the next groups meanwhile
  reuse of identical jobs           the same job is trained again and again, which late in a run is most of the time
  journal, checkpoints, resume      Ctrl-C loses everything
  infra faults                      a machine that fails ends the program; the library delivers the job again
  validation, best version, report  the lines printed are all there is

So a run is slower than `nested-rl pilot` and easily lost, but it learns in the same way from the same signal.
"""

import asyncio
import secrets
import sys
import time

import nested_rl as nrl
from nested_rl.jobs.folder import digest
from nested_rl.types import Draft, JobResult, Need

FAMILIES, GROUPS, GROUP_SIZE = ("calc_chain", "string_pipeline", "dispatch"), 4, 8

trainer = nrl.trainers.NanoTrainer()  # the agent: a language model that writes files, and its GRPO update
harness = nrl.harness.ToolHarness()  # what the agent can do: write files, ask for baselines, submit
inner = nrl.inner.NanoInnerTrainer()  # what a job is: how it is checked, and how it trains a small model
scorer = nrl.scorers.NanoScorer()  # asks a model the questions of an evaluation; the answers stay here
compute = nrl.compute.LocalCompute(max_machines=1)
reward = nrl.rewards.UpliftReward()
families = {family.name: family for family in nrl.tasks.load(*FAMILIES, scale="nano")}


class Desk:
    """Where one episode happens: the harness asks it for the guide and the baselines, and hands the job in."""

    def __init__(self, task, dev):
        self.task, self.dev = task, dev
        self.files, self.base, self.attempts = {}, None, 0

    def guide(self, *, brief):
        return inner.guide(self.task, brief=brief)

    async def baselines(self):
        return {base: round(score.value, 2) for base, score in self.dev.items()}

    async def submit(self, files):
        validation = await inner.validate(Draft(task=self.task, files=files))
        self.attempts += 1
        self.files, self.base = dict(files), validation.base if validation.ok else None
        return validation


async def measure(task, machine, salt):
    """What is asked about a task, and what the untrained bases score. The agent may see the dev scores, never the hidden."""
    found = {}
    for split in ("hidden", "dev"):
        items = families[task.family].eval_set(task, split, salt=salt)
        found[split] = items, {base: await scorer.score(base, items, machine) for base in inner.bases}
    return found


async def sample(seat, desk, seed):
    """One episode up to the agent's last word. All seats of a group take their turns together, in one batch."""
    try:
        return await harness.run(desk.task, seat, desk, seed=seed)
    finally:
        seat.close()


async def run_job(desk, hidden, machine, seed):
    """The inner loop: train the small model the agent chose, as the agent said; then ask it the hidden questions."""
    job = {"task": desk.task, "files": desk.files, "digest": digest(desk.files), "base": desk.base, "scale": "nano"}
    spec = nrl.JobSpec(**job, seed=seed)
    try:
        checkpoint = await inner.train(nrl.Job(id=f"{seed}", key=f"{seed}", spec=spec, delivery=1), machine)
    except nrl.errors.AgentFault as fault:  # the job's own doing: it scores, with nothing
        return JobResult(fault="agent", error=str(fault))
    post = await scorer.score(checkpoint, hidden, machine, seed=seed)
    return JobResult(post=post, cost=checkpoint.work, cost_limit=checkpoint.work_limit)


async def judged(desk, measured, machine, seed):
    """What came of an episode, its reward, and the reward's parts."""
    hidden, untrained = measured["hidden"]
    result = await run_job(desk, hidden, machine, seed) if desk.base else JobResult()
    outcome = nrl.Outcome(
        task=desk.task,
        valid=desk.base is not None,
        attempts=desk.attempts,
        base=desk.base,
        baselines=untrained,
        post=result.post,
        cost=result.cost,
        cost_limit=result.cost_limit,
        fault=result.fault,
    )
    return outcome, *await nrl.rewards.evaluate(reward, outcome)


async def play(index, task, policy, measured, machine):
    """One group: the same task, the same weights, GROUP_SIZE episodes that differ only in their seeds."""
    seeds = range(index * GROUP_SIZE, (index + 1) * GROUP_SIZE)
    desks = [Desk(task, measured["dev"][1]) for _ in seeds]
    talks = await asyncio.gather(*map(sample, policy.seats(GROUP_SIZE), desks, seeds))
    about = {"group": index, "task": task, "version": policy.version}
    episodes = []
    for desk, seed, transcript in zip(desks, seeds, talks, strict=True):
        outcome, value, parts = await judged(desk, measured, machine, seed)
        told = {"transcript": transcript, "outcome": outcome, "reward": value, "parts": parts}
        episodes.append(nrl.Episode(**about, **told, member=len(episodes)))
    return nrl.Group(index=index, task=task, version=policy.version, episodes=tuple(episodes))


async def main(steps):
    streams = {name: family.tasks("train", seed=0) for name, family in families.items()}
    salt, measured = secrets.token_hex(16), {}
    for step in range(steps):
        started_s, groups, policy = time.monotonic(), [], await trainer.policy()
        async with compute.machine(Need()) as machine:
            for index in range(step * GROUPS, (step + 1) * GROUPS):
                task = next(streams[FAMILIES[index % len(FAMILIES)]])
                if task.family not in measured:
                    measured[task.family] = await measure(task, machine, salt)
                groups.append(await play(index, task, policy, measured[task.family], machine))
        await trainer.update(groups)  # advantages inside each group, importance weights, one gradient step
        told = [episode for group in groups for episode in group.episodes]
        valid = [episode.outcome for episode in told if episode.outcome.valid]
        mean, uplift = sum(e.reward for e in told) / len(told), sum(o.uplift for o in valid) / max(1, len(valid))
        counts = f"valid {len(valid)} of {len(told)}  uplift {uplift:.3f}  {time.monotonic() - started_s:.1f} s"
        print(f"step {step + 1}/{steps}  reward {mean:.3f}  {counts}", flush=True)
    await inner.close()
    await compute.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
