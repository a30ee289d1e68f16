"""Small, valid values to test with."""

from __future__ import annotations

from collections.abc import Mapping

from nested_rl.types import JobSpec, Task


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
