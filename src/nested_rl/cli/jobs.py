"""`jobs check`: what an agent would be told about a job folder."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from nested_rl.errors import SettingsError
from nested_rl.types import Draft, Need, Validation

app = App(name="jobs", help="Look at job folders.")

_MOST_FILES, _MOST_BYTES = 200, 4_000_000


@app.command
def check(
    directory: Path,
    /,
    *,
    inner: str = "nano",
    family: str = "calc_chain",
    gpus: int = 0,
    gpu_memory_gib: float = 0.0,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Validate a job folder the way an agent's submission is validated.

    Static checks first, then a probe that runs its code in the sandbox.

    Exit code 0 when the job would be accepted, 1 when not.

    Args:
        directory: The job folder.
        inner: The inner trainer it is for.
        family: The family it is for.
        gpus: How many GPUs the machine has that it is for; 0 leaves open where it will run.
        gpu_memory_gib: The memory of each of them.
        as_json: Print {"ok": ..., "problems": [{"code", "where", "message", "hint"}, ...]}.
    """
    from nested_rl import parts, sync, tasks

    files = read(directory)
    trainer = parts.find("inner", inner)()
    if gpus and hasattr(trainer, "offered"):
        trainer.offered((Need(gpus=gpus, gpu_memory_gib=gpu_memory_gib, disk_gib=math.inf),))
    (chosen,) = tasks.load(family, scale=trainer.scale)
    draft = Draft(task=next(chosen.tasks("train")), files=files)
    verdict = sync.run(_validate(trainer, chosen, draft))
    if as_json:
        print(json.dumps({"ok": verdict.ok, "problems": [_plain(problem) for problem in verdict.problems]}))
    else:
        _tell(directory, verdict)
    return 0 if verdict.ok else 1


async def _validate(trainer: Any, family: Any, draft: Draft) -> Validation:
    if hasattr(trainer, "bind"):
        trainer.bind((family,))
    try:
        verdict: Validation = await trainer.validate(draft)
    finally:
        if hasattr(trainer, "close"):
            await trainer.close()
    return verdict


def _plain(problem: Any) -> dict[str, str]:
    return {name: getattr(problem, name) for name in ("code", "where", "message", "hint")}


def _tell(directory: Path, verdict: Validation) -> None:
    if verdict.ok:
        data = f", data of {', '.join(verdict.families)}" if verdict.families else ""
        print(f"{directory}: a valid job on {verdict.base}{data}")
    for problem in verdict.problems:
        print(f"{problem.where}: {problem.message} [{problem.code}]")
        if problem.hint:
            print(f"    {problem.hint}")


def read(directory: Path) -> dict[str, str]:
    """Every file of a job folder, as text. Hidden files and caches are not part of a job."""
    if not directory.is_dir():
        raise SettingsError(f"{directory}: no such folder")
    files: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or any(part.startswith(".") or part == "__pycache__" for part in name.split("/")):
            continue
        if len(files) == _MOST_FILES or path.stat().st_size > _MOST_BYTES:
            raise SettingsError(f"{directory} is not a job folder: {name} is too big, or there are too many files")
        files[name] = path.read_bytes().decode("utf-8", "surrogateescape")
    return files
