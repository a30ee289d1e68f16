"""One request, one job, one answer.

The answer tells what was seen: `stop` (how it ended), `why`, the exit status, the weights' step and digest, the curve, the ends of
the logs, and what the machine's own instruments say. Whose fault it was is decided by the controller.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import facts, gpus, job, program, tree
from .files import replace
from .gpus import DriverLost
from .job import Ours, Run, Stop, Watch
from .tensors import Refused
from .wire import Wire

WITH_WEIGHTS = {"zero_signal", "collapse", "stalled"}
"""Ended early for a reason that leaves the weights of the last step worth a score: a task that is learned gives no signal either."""
SAME = 1e-9
"""Rewards that differ by no more than this are one reward."""
ABORTED_EMPTY = re.compile("consecutive (empty train batches|zero-output batch equivalents)")


def begin() -> None:
    """`facts NAME GPUS FREE_MIB PATIENCE_S USER` prints what there is; without arguments one job is run."""
    if sys.argv[1:2] == ["facts"]:
        name, ids, free_mib, patience_s, *user = sys.argv[2:]
        print(json.dumps(facts.facts(name, ids, int(free_mib), float(patience_s), "".join(user))))  # noqa: T201  the answer
    elif sys.argv[1:2] == ["keep"]:
        main()
    else:
        sys.exit(keep())


def keep() -> int:
    """Run this program again where a machine that kills what it started does not find it; its exit status.

    The second ends when this one does, and ends the whole job first: a machine would miss what hides from it.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        tree.end_with_parent(signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        os.execve(sys.executable, [sys.executable, "-I", sys.argv[0], "keep"], program.unmarked())  # noqa: S606
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256


def main() -> None:
    """Read the request, do it, answer. What this process writes is for its own user alone; a job is given its files."""
    os.umask(0o077)
    wire = Wire.claim()
    request = wire.request()
    try:
        tree.adopt_orphans()
        with job.prepared(request, wire) as run:
            wire.pace(run.limits.beat_s)
            wire.tell("started", notes=run.walls.notes, network=run.walls.network, uid=run.walls.uid)
            answer = train(run)
    except Ours as fault:
        answer = {"stop": fault.stop, "why": str(fault)}
    except Exception as error:  # noqa: BLE001  told to the controller, which knows what to do about it
        traceback.print_exc()
        answer = {"stop": "ours", "why": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):  # for people who look for it here; the answer is what counts
        replace(f"{request['state']}/result.json", json.dumps(answer).encode())
    wire.tell("ended", **answer)


def train(run: Run) -> dict[str, Any]:
    """The gate, the run, the weights, the GPUs."""
    before = _gpus(run)
    if (closed := _gate(run)) is not None:
        return {**_answer(*closed, None), "logs": job.logs(run)}
    watch = Watch(run)
    name, *rest = run.request["argv"]
    status, stop = run.execute([run.find(name), *rest], gpus=run.gpus, watch=watch)
    watch.read(time.monotonic())
    kind, why = stop or _ended(run, status, watch)
    told = _answer(kind, why, status)
    told |= {"logs": job.logs(run), "curve": watch.dog.curve, "rows": watch.dog.rows, "peak_mib": watch.peak_mib}
    if kind != "called_off":
        told |= _weights(run, kind)
        told |= _aftermath(run, before)
    return told


def _answer(kind: str, why: str, status: int | None) -> dict[str, Any]:
    return {"stop": kind, "why": why, "status": status}


def _ended(run: Run, status: int | None, watch: Watch) -> Stop:
    """Why a program ended that nobody ended."""
    if status == 0:
        return "done", ""
    if (full := watch.disk()) is not None:
        return full
    if ABORTED_EMPTY.search(run.folder.tail(f"{job.log_folder(run)}/orchestrator.log", job.LOG_BYTES)):
        return "zero_signal", "prime-rl gave up: batch after batch had no two answers with different rewards"
    how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
    return "crash", f"{run.request['argv'][0]} ended with {how}"


def _weights(run: Run, kind: str) -> dict[str, Any]:
    if kind != "done" and kind not in WITH_WEIGHTS:
        return {}
    try:
        step, digest = job.take(run, steps=int(run.request["steps"]) if kind == "done" else None)
    except Refused as refused:
        return {"refused": str(refused)}
    return {"step": step, "digest": digest}


def _gpus(run: Run) -> list[gpus.Gpu]:
    """Those the job will use, free. Whatever holds their memory now is not this job."""
    try:
        mine = _freed(run)
    except DriverLost as lost:
        raise Ours(str(lost)) from None
    for gpu in mine:
        if gpu.used_mib > run.limits.gpu_free_mib:
            raise Ours(f"GPU {gpu.index} is in use: {gpu.used_mib} MiB, before the job began")
    return mine


def _aftermath(run: Run, before: list[gpus.Gpu]) -> dict[str, Any]:
    """What the driver says when everything of the job is dead."""
    try:
        after = _freed(run)
    except DriverLost as lost:
        return {"driver": str(lost)}
    return {
        "gpus": [asdict(gpu) for gpu in after],
        "held": [gpu.index for gpu in after if gpu.used_mib > run.limits.gpu_free_mib],
        "gone": len(before) - len(after),
        "ecc": sum(gpu.ecc for gpu in after) - sum(gpu.ecc for gpu in before),
    }


def _freed(run: Run) -> list[gpus.Gpu]:
    limits = run.limits
    return gpus.freed(run.gpus, limits.gpu_free_mib, limits.gpu_s, pause=lambda: run.wire.wait(limits.poll_s))


def _gate(run: Run) -> Stop | None:
    """Ask the untrained base before anything is trained; a reason not to train. A gate that cannot be run is passed, and said."""
    limit_s = run.request.get("gate_s")
    if limit_s is None:
        return None
    deadline_s = time.monotonic() + float(limit_s)

    def watch(now_s: float) -> Stop | None:
        run.wire.beat({"gate": True})
        return ("gate_late", f"not done after {limit_s:g} s") if now_s > deadline_s else None

    python = Path(run.find(run.request["argv"][0])).with_name("python")
    if not os.access(python, os.X_OK):
        run.wire.tell("gate", passed=None, why="no python beside the trainer")
        return None
    status, stop = run.execute([str(python), "gate.py"], gpus=run.gpus.partition(",")[0], watch=watch)
    if stop is not None and stop[0] == "called_off":
        return stop
    _freed(run)
    try:
        groups = _rewards(run)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        run.wire.tell("gate", passed=None, why=stop[1] if stop else f"no rewards, exit status {status}")
        return None
    flat = all(max(group) - min(group) <= SAME for group in groups)
    mean = sum(map(sum, groups)) / sum(map(len, groups))
    run.wire.tell("gate", passed=not flat, mean=mean, prompts=len(groups))
    why = f"the untrained base gets one reward for all answers to each of {len(groups)} prompts (mean {mean:.3g})"
    return ("no_variance", why) if flat else None


def _rewards(run: Run) -> list[list[float]]:
    """What the gate wrote: rewards by prompt. The job could have written it too, and would only cheat itself."""
    told = json.loads(run.folder.read("scratch/gate.json", 1 << 20))["rewards"]
    groups = [[float(reward) for reward in group] for group in told]
    if not groups or not all(groups):
        raise ValueError("no rewards")
    return groups
