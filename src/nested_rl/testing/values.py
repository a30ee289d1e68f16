"""Small, valid values to test with."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from nested_rl.types import Episode, JobResult, JobSpec, Message, Outcome, Score, Task, Transcript, Turn, Validation

_BASE = Score.of([0.0, 1.0] * 8)


def made_task(family: str = "calc_chain", *, difficulty: int = 1) -> Task:
    """A task that names a family and says little."""
    return Task(id=f"{family}-{difficulty}", family=family, difficulty=difficulty, prompt="Teach it.", brief="teach")


def made_spec(files: Mapping[str, str] | None = None, *, seed: int = 0, timeout_s: float = 600.0) -> JobSpec:
    """A job of two small files. Its text is not plain ASCII, because an agent's need not be."""
    files = {"job.toml": '[model]\nbase = "nano-s"\n', "environment.py": "# “ü” \0 \\\n"} if files is None else files
    return JobSpec(
        task=made_task(),
        files=files,
        digest="0" * 64,
        base="nano-s",
        scale="nano",
        seed=seed,
        timeout_s=timeout_s,
    )


def made_outcomes() -> tuple[Outcome, ...]:
    """One of each kind: not valid, the agent's fault, worse, a little better, perfect, free of charge, without baselines."""
    task, pre = made_task(), {"nano-s": _BASE, "nano-m": Score.of([0.0] * 16)}
    valid = Outcome(task=task, valid=True, attempts=2, base="nano-s", baselines=pre, cost_limit=10.0)
    scores = [Score.of([0.0] * 16), Score.of([0.0, 1.0, 1.0, 1.0] * 4), Score.of([1.0] * 16)]
    return (
        Outcome(task=task),
        Outcome(task=task, attempts=3, baselines=pre),
        evolve(valid, fault="agent", error="reward() raised “Fehler”\n\0"),
        *(evolve(valid, post=post, cost=4.0, seconds=1.5, usd=0.01) for post in scores),
        Outcome(task=task, valid=True, attempts=1, post=scores[-1], cost_limit=0.0),
    )


def made_episodes() -> tuple[Episode, ...]:
    """One of each outcome, and a masked one. What was said is not plain ASCII."""
    turn = Turn(message=Message(role="assistant", content="ü \ud800 \0"), ids=(1, 2), logprobs=(-0.5, -1.0))
    said = Transcript(conversation=(Message(role="user", content="go"), turn), end="stop")
    return tuple(
        Episode(
            group=0,
            member=member,
            task=outcome.task,
            version=0,
            transcript=said,
            outcome=outcome,
            validations=(Validation(ok=outcome.valid),),
            reward=0.5,
            parts={"quality": 0.5},
            masked=member == 0,
            result=JobResult(post=outcome.post) if outcome.valid else None,
        )
        for member, outcome in enumerate(made_outcomes())
    )
