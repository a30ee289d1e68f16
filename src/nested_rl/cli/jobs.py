"""`jobs check`: what an agent would be told about a job folder."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from nested_rl.errors import NestedRLError, SettingsError
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
    allow_weak_sandbox: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Validate a job folder the way an agent's submission is validated.

    Static checks first, then a probe that runs its code in the sandbox.

    Exit code 0 when the job would be accepted, 1 when not. With --json also a folder that cannot be read ends so, with the reason
    as a problem.

    Args:
        directory: The job folder.
        inner: The inner trainer it is for.
        family: The family it is for.
        gpus: How many GPUs the machine has that it is for; 0 leaves open where it will run.
        gpu_memory_gib: The memory of each of them; goes together with --gpus.
        allow_weak_sandbox: Run the job's code also where nothing but resource limits holds it; for code that you trust.
        as_json: Print {"ok": ..., "problems": [{"code", "where", "message", "hint"}, ...]}, and "warnings" when there are any.
    """
    from nested_rl import sync

    if not as_json:
        verdict = sync.run(_verdict(directory, inner, family, _machine(gpus, gpu_memory_gib), weak=allow_weak_sandbox))
        _tell(directory, verdict)
        return 0 if verdict.ok else 1
    with _warnings() as said:
        try:
            verdict = sync.run(
                _verdict(directory, inner, family, _machine(gpus, gpu_memory_gib), weak=allow_weak_sandbox)
            )
            problems = [_plain(problem) for problem in verdict.problems]
        except NestedRLError as error:  # a program that reads JSON gets JSON
            problems = [{"code": "check", "where": str(directory), "message": str(error), "hint": ""}]
    print(json.dumps({"ok": not problems, "problems": problems, **({"warnings": said} if said else {})}))
    return 1 if problems else 0


def _machine(gpus: int, gpu_memory_gib: float) -> Need | None:
    """The machine that the options describe. Raises SettingsError for half of one, and for what no machine has."""
    if gpus < 0 or not 0 <= gpu_memory_gib < math.inf:
        raise SettingsError(f"--gpus {gpus} and --gpu-memory-gib {gpu_memory_gib:g}: both must be 0 or more")
    if bool(gpus) != bool(gpu_memory_gib):
        raise SettingsError("--gpus and --gpu-memory-gib go together, such as --gpus 1 --gpu-memory-gib 24")
    return Need(gpus=gpus, gpu_memory_gib=gpu_memory_gib, disk_gib=math.inf) if gpus else None


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the package warns of meanwhile: why a kind of job is not accepted here, for one."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, log = Kept(logging.WARNING), logging.getLogger("nested_rl")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


async def _verdict(directory: Path, inner: str, family: str, machine: Need | None, *, weak: bool) -> Validation:
    from nested_rl import parts, tasks

    files = read(directory)
    trainer = parts.find("inner", inner)()
    if machine is not None and hasattr(trainer, "offered"):
        trainer.offered((machine,))
    (chosen,) = tasks.load(family, scale=trainer.scale)
    return await _validate(trainer, chosen, Draft(task=next(chosen.tasks("train")), files=files), weak=weak)


async def _validate(trainer: Any, family: Any, draft: Draft, *, weak: bool) -> Validation:
    from nested_rl.jobs.secrets import secret

    if hasattr(trainer, "bind"):
        trainer.bind((family,))
    try:
        if hasattr(trainer, "require_walls") and not weak:
            await trainer.require_walls()
        verdict: Validation = secret(draft.files) or await trainer.validate(draft)
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
        if path.is_symlink():
            raise SettingsError(f"{directory}: {name} is a link, which is not followed; a job folder holds plain files")
        if not path.is_file() or any(part.startswith(".") or part == "__pycache__" for part in name.split("/")):
            continue
        if len(files) == _MOST_FILES or path.stat().st_size > _MOST_BYTES:
            raise SettingsError(f"{directory} is not a job folder: {name} is too big, or there are too many files")
        files[name] = path.read_bytes().decode("utf-8", "surrogateescape")
    return files
