"""Writes a run directory as a run would leave it: an agent that learns first validity, then quality. For tests of readers."""

import math
import random

from nested_rl.metrics import Counted, step_row
from nested_rl.rundir import RunDir
from nested_rl.types import (
    Episode,
    Group,
    JobResult,
    Message,
    Outcome,
    Problem,
    Score,
    Task,
    ToolCall,
    Transcript,
    Turn,
    UpdateReport,
    Validation,
)

BASELINES = {
    "calc_chain": {"nano-s": 0.26, "nano-m": 0.71},
    "string_pipeline": {"nano-s": 0.36, "nano-m": 0.50},
    "dispatch": {"nano-s": 0.32, "nano-m": 0.22},
    "triage": {"nano-s": 0.30, "nano-m": 0.35},
}
PROBLEMS = (
    Problem(
        code="unknown-key",
        where="job.toml [training] learning_rat",
        message="job.toml has no key 'learning_rat'",
        hint="did you mean 'learning_rate'?",
        brief="no key learning_rat",
    ),
    Problem(
        code="reward-not-number",
        where="environment.py reward",
        message="reward returned 'yes', not a finite number",
        hint="return a float",
        brief="reward must be a number",
    ),
)
JOB = '[model]\nbase = "{base}"\n\n[training]\nsteps = {steps}\n{key} = 1e-3\n'
ENVIRONMENT = """from nested_rl.jobkit import make, parse


def examples(rng, n):
    return make("{family}", rng, n)


def reward(prompt, completion, answer):
    return {reward}
"""


def score(rng, value, n=64):
    return Score.of([float(rng.random() < value) for _ in range(n)])


def hidden(family, seed=0):
    rng = random.Random(f"{family}/{seed}")
    return {base: score(rng, value, 256) for base, value in BASELINES[family].items()}


def made_attempts(rng, family, base, skill, text):
    """Files and verdicts of up to three submissions."""
    files, validations = {}, []
    for attempt in (1, 2, 3):
        ok = rng.random() < min(0.97, 0.12 + 1.5 * skill)
        key = "learning_rate" if ok or rng.random() < 0.5 else "learning_rat"
        problem = () if ok else (PROBLEMS[0] if key == "learning_rat" else PROBLEMS[1],)
        value = "1.0 if parse(completion) == answer else 0.0" if ok or key == "learning_rat" else '"yes"'
        files[attempt] = {
            "job.toml": JOB.format(base=base, steps=25, key=key),
            "environment.py": text or ENVIRONMENT.format(family=family, reward=value),
        }
        validations.append(Validation(ok=ok, problems=problem, base=base, families=(family,) if ok else ()))
        if ok or rng.random() < 0.3:
            break
    return files, validations


def made_talk(task, version, *, valid):
    """What was said, in short."""
    return (
        Message(role="user", content=task.brief),
        Turn(
            message=Message(role="assistant", tool_calls=(ToolCall(name="submit_job"),)),
            prompt_ids=(1, 2, 3),
            ids=(4, 5),
            logprobs=(-0.1, -0.2),
            version=version,
        ),
        Message(role="tool", content="valid" if valid else f"error: {PROBLEMS[0].brief}", name="submit_job"),
    )


def made_episode(rng, *, group, member, family, version, skill, text=None):
    """One episode of an agent with `skill` in [0, 1]: (episode, files by attempt)."""
    task = Task(id=f"{family}-k3-v0-s{group}", family=family, difficulty=3, seed=group, brief=f"task {family} k 3")
    if rng.random() < 0.01:
        return masked_episode(task, group, member, version), {}
    baselines = hidden(family)
    best = max(baselines, key=lambda b: baselines[b].value)
    base = best if rng.random() < 0.5 + 0.5 * skill else next(b for b in baselines if b != best)
    files, validations = made_attempts(rng, family, base, skill, text)
    valid = validations[-1].ok
    result, post = None, None
    if valid:
        post = score(rng, min(0.95, baselines[base].value + 0.3 * skill * rng.random() + 0.02), 256)
        curve = tuple(min(1.0, 0.2 + 0.02 * i + 0.05 * rng.random()) for i in range(25))
        result = JobResult(
            post=post, cost=3e8, cost_limit=1e9, seconds=0.9, machine="local-0", curve=curve, log="step 25"
        )
    outcome = Outcome(
        task=task,
        valid=valid,
        attempts=len(validations),
        base=base if valid else None,
        first_base=base,
        families=(family,) if valid else (),
        baselines=baselines,
        post=post,
        cost=3e8 if valid else 0.0,
        cost_limit=1e9,
        seconds=0.9 if valid else 0.0,
        asked_baselines=rng.random() < 0.2 + 0.7 * skill,
        reused=rng.random() < 0.2,
    )
    quality = 0.25 * post.value + 0.75 * outcome.uplift if post else 0.0
    parts = {
        "validation": (1.0, 0.6, 0.3)[len(validations) - 1] if valid else 0.0,
        "quality": quality,
        "speed": 0.7 * valid,
    }
    weights = {"validation": 0.35, "quality": 0.60, "speed": 0.05}
    episode = Episode(
        group=group,
        member=member,
        task=task,
        version=version,
        transcript=Transcript(
            conversation=made_talk(task, version, valid=valid),
            end="submitted" if valid else "attempts",
            asked_baselines=outcome.asked_baselines,
        ),
        outcome=outcome,
        validations=tuple(validations),
        reward=sum(weights[name] * value for name, value in parts.items()),
        parts=parts,
        result=result,
        job_key=f"{family}-k3-{group}-{member}" if valid else "",
        agent_s=0.2,
    )
    return episode, files


def masked_episode(task, group, member, version):
    return Episode(
        group=group,
        member=member,
        task=task,
        version=version,
        transcript=Transcript(conversation=(), end="infra"),
        outcome=Outcome(task=task, fault="infra", error="MachineLost: local-1 stopped answering"),
        masked=True,
    )


def skill_at(step, steps):
    return 1 / (1 + math.exp(-8 * (step / max(1, steps) - 0.4)))


def make_run(path, *, steps=25, done=None, groups_per_step=4, group_size=8, seed=0, text=None, evals=True):
    """A run of `steps` steps of which `done` (all by default) are done, with one more group in flight when unfinished."""
    done = steps if done is None else done
    families = ["calc_chain", "string_pipeline", "dispatch"]
    asked = {
        "steps": steps,
        "groups_per_step": groups_per_step,
        "group_size": group_size,
        "seed": seed,
        "tasks": families,
    }
    run = RunDir.create(path, asked)
    rng = random.Random(seed)
    clock = iter(range(1_700_000_000, 1_800_000_000, 4))
    tell = lambda event, **fields: run.journal.append({"t": float(next(clock)), "event": event, **fields})  # noqa: E731
    tell("run.started", steps=steps)
    run.journal.append({"t": 1_700_000_000.0, "event": "checkpoint", "version": 0, "ref": "00000"})
    run.write_baselines({f"{f}-k3": {"hidden": hidden(f), "dev": hidden(f, 1)} for f in families})
    for step in range(done + (done < steps)):
        groups = []
        for index in range(step * groups_per_step, (step + 1) * groups_per_step):
            family, version = families[index % 3], max(0, step - 1)
            made = [
                made_episode(
                    rng, group=index, member=m, family=family, version=version, skill=skill_at(step, steps), text=text
                )
                for m in range(group_size)
            ]
            for episode, files in made:
                run.write_episode(episode, files=files)
            groups.append(Group(index=index, task=made[0][0].task, version=version, episodes=tuple(e for e, _ in made)))
            if step == done:
                run.close()
                return run
        update = UpdateReport(version=step + 1, stepped=True, ratio_mean=1.01, ratio_max=1.0 + rng.random(), ess=0.9)
        usd = 0.02
        counted = Counted(
            jobs_run=20, jobs_reused=4, usd=usd, usd_total=usd * (step + 1), step_s=8.0, sample_s=1.5, train_s=0.5
        )
        row = step_row(step, groups, update, counted)
        tell("step.done", step=step, version=step + 1, ref=f"{step + 1:05d}", groups=[g.index for g in groups], row=row)
        run.metrics_log.append(row)
        run.costs_log.append({"id": f"job-{step}", "t": 0.0, "kind": "job", "usd": 0.015, "step": step})
        run.costs_log.append({"id": f"update-{step}", "t": 0.0, "kind": "update", "usd": 0.005, "step": step})
        if evals and (step + 1) % 5 == 0:
            made_eval(
                run, f"validation-{step + 1:05d}", f"version {step + 1}", step + 1, "validation", skill_at(step, steps)
            )
    if evals and done == steps:
        made_eval(run, "triage-initial", f"{path}@initial", 0, "test", 0.02)
        made_eval(run, "triage-best", f"{path}@best", steps, "test", 0.9)
    run.close()
    return run


def made_eval(run, name, policy, version, split, skill):
    """One evaluation record, as `EvalReport.to_json` writes it."""
    rng = random.Random(f"{name}")
    rows = []
    for index in range(48 if split == "test" else 24):
        family = "triage" if split == "test" else ("calc_chain", "string_pipeline", "dispatch")[index % 3]
        e, _ = made_episode(rng, group=index, member=0, family=family, version=version, skill=skill)
        rows.append(
            {
                "task": f"{index}:{e.task.id}",
                "family": family,
                "reward": e.reward,
                "valid": e.outcome.valid,
                "first_try": e.outcome.attempts == 1,
                "quality": e.parts.get("quality", 0.0),
                "strongest": True,
                "own_family": True,
                "advanced": False,
                "asked_baselines": e.outcome.asked_baselines,
            }
        )
    mean = lambda name: sum(float(r[name]) for r in rows) / len(rows)  # noqa: E731
    means = {"reward": mean("reward"), "valid": mean("valid")}
    run.write_eval(
        name, {**means, "policy": policy, "version": version, "split": split, "seed": 0, "masked": 0, "rows": rows}
    )
