"""From a draft to a verdict: the folder, the code as written, then a short run in the sandbox."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence

from attrs import evolve

from nested_rl import redact
from nested_rl.interfaces import TaskFamily
from nested_rl.jobs.check import check
from nested_rl.jobs.folder import CODE, JobConfig, parse
from nested_rl.jobs.probe import Findings, probe
from nested_rl.jobs.problems import problem
from nested_rl.jobs.sandbox import Limits, Zygote
from nested_rl.jobs.surface import Surface
from nested_rl.types import Draft, Problem, Validation

log = redact.logger(__name__)


async def validate(
    draft: Draft,
    surface: Surface,
    *,
    zygote: Zygote,
    families: Sequence[TaskFamily] = (),
    limits: Limits | None = None,
) -> Validation:
    """All problems that are written in the files; if there are none, what the probe finds. Raises SandboxUnavailable.

    The work is done on `zygote.threads`, so no more than its `at_once` drafts are looked at together.
    """
    started = time.perf_counter()
    work = functools.partial(examine, draft, surface, zygote=zygote, families=families, limits=limits)
    validation = await asyncio.get_running_loop().run_in_executor(zygote.threads, work)
    return evolve(validation, seconds=time.perf_counter() - started)


def examine(
    draft: Draft,
    surface: Surface,
    *,
    zygote: Zygote,
    families: Sequence[TaskFamily] = (),
    limits: Limits | None = None,
) -> Validation:
    """The same, blocking."""
    config, problems = _written(draft.files, surface)
    findings = Findings(problems=problems)
    if not problems:
        findings = probe(draft.files, surface.probe, zygote=zygote, families=families, limits=limits)
    return Validation(
        ok=not findings.problems,
        problems=findings.problems,
        base=config.base if config is not None else None,
        advanced=config is not None and config.advanced,
        families=findings.families,
        notes=findings.notes,
    )


def _written(files: Mapping[str, str], surface: Surface) -> tuple[JobConfig | None, tuple[Problem, ...]]:
    """What the files say and what is wrong with them, which depends on their text alone.

    So a failure of ours in here is one that the text can bring about at will. It counts as a problem of the job: taken for
    a fault of ours, it would let an agent call off any episode that it is losing.
    """
    try:
        config, problems = parse(files, surface)
        return config, (*problems, *check(files, surface))
    except Exception:
        log.exception("the checks failed on a job, which is refused; this is a bug of nested_rl")
        return None, (problem("environment.syntax", CODE, "the job cannot be checked", "write plainer files"),)
