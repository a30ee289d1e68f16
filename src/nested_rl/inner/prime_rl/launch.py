"""One order on one machine: the runner and the job are put there, progress is followed, and the end is judged.

The runner tells what it saw; whose fault that is, is decided here, from what the job's own processes cannot write. What they print
goes into messages, and never moves blame from the job to the machine.

| what was seen                                                                        | outcome                    |
|--------------------------------------------------------------------------------------|----------------------------|
| exit status 0, STABLE of the last step, names and shapes of the base, all finite      | Ended, stop "done"         |
| no signal, collapse or a stall after a complete step, and its weights are sound       | Ended, with that stop      |
| the same before any step was complete                                                | AgentFault                 |
| exit status 0 without those weights; weights that are refused                         | AgentFault                 |
| NaN; past its deadline; the untrained base gets one reward for all answers            | AgentFault                 |
| any other exit status or signal (a crash of the environment, GPU or host memory full)  | AgentFault                 |
| no first step in time, and the GPUs' memory was in use (the engine ran)               | AgentFault                 |
| no first step in time, and the GPUs' memory was never used                            | InfraFault                 |
| the disk is full, and the job used more than its share / and it did not               | AgentFault / InfraFault    |
| the driver is lost, a GPU gone, new uncorrected ECC errors, memory that is not freed  | InfraFault, whatever else  |
| a native taskset on a machine that does not keep it apart (preflight.require_apart)   | InfraFault                 |
| processes that do not die; no base, no `rl`, GPUs in use before the start             | InfraFault                 |
| the runner fails, falls silent, dies, or answers with another nonce                   | MachineLost                |
| called off                                                                           | everything killed, re-raised |
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import asdict, field, frozen

from nested_rl.clock import Clock, SystemClock
from nested_rl.errors import AgentFault, InfraFault, MachineLost
from nested_rl.inner.prime_rl.order import RUN_FOLDER, Ended, Order
from nested_rl.inner.prime_rl.preflight import (
    JOB_USER,
    PINNED,
    Facts,
    NotApart,
    forget,
    installed,
    preflight,
    require_apart,
)
from nested_rl.interfaces import Machine, Process
from nested_rl.types import JSON
from nested_rl.waiting import Overdue, uninterrupted, within

OnProgress: TypeAlias = Callable[[str, Mapping[str, JSON]], None]

GATE_PROMPTS, GATE_SAMPLES, GATE_S = 16, 8, 300.0
LOG_CHARS, SAID_CHARS = 40_000, 1200
_ENGINE_MIB = 1500
"""An engine that has loaded the smallest base holds more than this."""


@frozen(kw_only=True)
class Watch:
    """How closely a run is watched; see the runner's Limits, which has the same names. Seconds, counts, bytes, MiB.

    `silence_s`: a runner that says nothing for so long is lost. `stop_s`: so long it may take to end everything.
    """

    poll_s: float = 2.0
    beat_s: float = 10.0
    patience_s: float = 20.0
    gpu_s: float = 20.0
    empty_batches: int = 4
    flat_rows: int = 8
    broken_rows: int = 2
    collapse: float = 0.2
    collapse_from: float = 0.1
    job_bytes: int = 60 << 30
    spare_bytes: int = 2 << 30
    gpu_free_mib: int = 600
    silence_s: float = field(default=300.0, metadata={"here": True})
    stop_s: float = field(default=60.0, metadata={"here": True})


@frozen(kw_only=True)
class Terms:
    """What a machine is and how jobs run on it. `isolate`: without a network, where that can be had.

    A native taskset runs as a user that is not the runner's, or not at all; with `allow_weak_sandbox` wherever other jobs do.
    """

    user: str = JOB_USER
    isolate: bool = True
    gate: bool = True
    allow_weak_sandbox: bool = False
    versions: Mapping[str, str] = PINNED
    watch: Watch = Watch()


async def launch(
    machine: Machine,
    order: Order,
    *,
    terms: Terms | None = None,
    clock: Clock | None = None,
    on_progress: OnProgress | None = None,
) -> Ended:
    """Train. Raises AgentFault, InfraFault or MachineLost, as the table above says.

    `on_progress` is told of `started`, `gate` and `beat` (with the step and its mean reward). Cancelled, it returns when everything
    that ran on the machine is dead.
    """
    terms, clock = terms or Terms(), clock or SystemClock()
    began_s = clock.monotonic()
    facts = await preflight(machine, gpus=order.gpus, program=order.argv[0], versions=terms.versions, user=terms.user)
    if _apart(order, terms):
        require_apart(machine, facts)
    try:
        answer, notes = await _Conversation(machine, order, terms, clock, on_progress).held()
        judge(machine.id, answer)
    except InfraFault:
        forget(machine)  # it is looked at again before it gets another job
        raise
    return Ended(
        path=f"{answer['state']}/model",
        digest=answer["digest"],
        seconds=clock.monotonic() - began_s,
        curve=tuple(answer["curve"]),
        log=_log(facts, notes, answer),
        stop=answer["stop"],
        peak_memory_gib=answer["peak_mib"] / 1024 if answer.get("peak_mib") else None,
    )


def judge(machine: str, answer: Mapping[str, Any]) -> None:
    """Raise whose fault it was, unless there are weights to score. `machine` is its id, for the message."""
    stop, why = answer["stop"], answer["why"]
    if trouble := _trouble(answer):
        raise InfraFault(f"{machine}: {trouble} (the run: {stop} {why})")
    if stop == "not_apart":
        raise NotApart(f"{machine}: {why}")
    if stop in {"ours", "disk_other"}:
        raise InfraFault(f"{machine}: {why}")
    if stop == "called_off":
        raise InfraFault(f"{machine}: the runner was told to end by somebody else")
    if stop == "no_start" and answer.get("gpus") and answer.get("peak_mib", 0) < _ENGINE_MIB:
        raise InfraFault(f"{machine}: {why}; no engine ever ran on its GPUs")
    if "digest" in answer:
        return
    if "refused" in answer:
        why = f"{why}; {answer['refused']}" if why else f"the run ended well, but {answer['refused']}"
    raise AgentFault(f"{why}{_said(answer.get('logs', {}))}")


def _trouble(answer: Mapping[str, Any]) -> str:
    if answer.get("driver"):
        return str(answer["driver"])
    if answer.get("gone", 0) > 0:
        return f"{answer['gone']} GPUs are gone"
    if answer.get("ecc", 0) > 0:
        return f"{answer['ecc']} uncorrected memory errors on its GPUs"
    if answer.get("held"):
        return (
            f"memory of GPU {', '.join(map(str, answer['held']))} is still in use when nothing of the job runs any more"
        )
    return ""


def _said(logs: Mapping[str, str]) -> str:
    """The last words of the part of the run that failed, for the job's author: its environment first."""
    order = sorted(logs, key=lambda name: (not name.startswith("envs/"), name != "orchestrator.log", name))
    for marker in ("Traceback (most recent call last)", "Error"):
        for name in order:
            if marker in logs[name]:
                return f"\n--- the end of {printable(name)}\n{printable(logs[name].rstrip())[-SAID_CHARS:]}"
    return ""


def printable(text: str) -> str:
    """Without control characters, so that a log cannot draw on a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def _log(facts: Facts, notes: list[str], answer: Mapping[str, Any]) -> str:
    ends = (
        f"--- {printable(name)}\n{printable(text.rstrip())}" for name, text in sorted(answer.get("logs", {}).items())
    )
    return "\n".join([facts.told, *notes, *ends])[:LOG_CHARS]


class _Conversation:
    """With the runner: one request, what it tells, one answer. However it is left, nothing of it runs on."""

    def __init__(
        self, machine: Machine, order: Order, terms: Terms, clock: Clock, on_progress: OnProgress | None
    ) -> None:
        self._machine, self._order, self._terms, self._clock = machine, order, terms, clock
        self._on_progress = on_progress or (lambda *_: None)
        self._nonce = secrets.token_hex(16)
        self._place = f"prime-rl/{order.digest[:16]}-{secrets.token_hex(4)}"
        self._notes: list[str] = []

    async def held(self) -> tuple[dict[str, Any], list[str]]:
        """The answer, and what was noted on the way."""
        command = await installed(self._machine)
        job = json.dumps(self._files()).encode()
        await self._machine.put(f"{self._place}/job.json", job)
        try:
            runner = await self._machine.start(command)
        except OSError as error:
            raise MachineLost(f"{self._machine.id}: the runner cannot be started: {error}") from error
        try:
            await runner.write(json.dumps(self._request(hashlib.sha256(job).hexdigest())).encode() + b"\n")
            answer = await self._heard(runner)
        except OSError as error:
            raise MachineLost(f"{self._machine.id}: the runner cannot be reached: {error}") from error
        finally:
            await uninterrupted(self._ended(runner))
        return {**answer, "state": f"{self._machine.root}/{self._place}"}, self._notes

    async def _heard(self, runner: Process) -> dict[str, Any]:
        silence_s = self._terms.watch.silence_s
        while True:
            try:
                line = await within(self._clock, silence_s, runner.readline())
            except Overdue:
                raise MachineLost(f"{self._machine.id}: the runner has been silent for {silence_s:g} s") from None
            told = self._checked(line)
            event = told.pop("event", "")
            if event == "ended":
                return told
            if event == "started":
                self._notes += told.get("notes", ())
            elif event == "gate":
                self._notes.append(_gate_told(told))
            self._on_progress(event, told)

    def _checked(self, line: bytes) -> dict[str, Any]:
        if not line.endswith(b"\n"):
            raise MachineLost(f"{self._machine.id}: the runner died before it answered")
        try:
            told = json.loads(line)
        except ValueError:
            raise MachineLost(
                f"{self._machine.id}: the runner told something that is not JSON: {line[:80]!r}"
            ) from None
        if not isinstance(told, dict) or told.pop("nonce", None) != self._nonce:
            raise MachineLost(f"{self._machine.id}: an answer without the nonce of the question: {line[:80]!r}")
        return told

    async def _ended(self, runner: Process) -> None:
        """Ask it to end everything, give it the time to, and then end it. After its answer there is nothing left to ask."""
        if runner.alive:
            with contextlib.suppress(OSError, Overdue, InfraFault):
                await runner.write(b"stop\n")
                await within(self._clock, self._terms.watch.stop_s, runner.wait())
        await runner.kill()

    def _files(self) -> dict[str, str]:
        """The job's work folder: path and text."""
        order = self._order
        files = {"job.toml": order.config, **{f"env/{path}": text for path, text in order.env.files.items()}}
        if (gate := self._gate()) is not None:
            files |= {"gate-request.json": json.dumps(gate), "gate.py": _GATE.read_text("utf-8")}
        return files

    def _request(self, sha256: str) -> dict[str, Any]:
        order, terms = self._order, self._terms
        limits = asdict(terms.watch, filter=lambda attribute, _: not attribute.metadata.get("here"))
        return {
            "nonce": self._nonce,
            "state": f"{self._machine.root}/{self._place}",
            "sha256": sha256,
            "argv": order.argv,
            "run_dir": RUN_FOLDER,
            "gpus": order.gpus,
            "steps": order.steps,
            "kind": order.kind,
            "base_path": order.base_path,
            "user": terms.user,
            "isolate": terms.isolate,
            "apart": _apart(order, terms),
            "gate_s": None if self._gate() is None else GATE_S,
            "limits": limits | {"deadline_s": order.deadline_s, "start_s": order.start_s, "stall_s": order.stall_s},
        }

    def _gate(self) -> dict[str, Any] | None:
        """What to ask the untrained base; None when it is not asked: a conversation of several turns cannot be judged by its first."""
        return gate(self._order) if self._terms.gate else None


def _apart(order: Order, terms: Terms) -> bool:
    """The plain dialect's code runs in a sandbox of its own there; a native taskset is imported by prime-rl itself."""
    return order.env.dialect == "native" and not terms.allow_weak_sandbox


def gate(order: Order) -> dict[str, Any] | None:
    """The question to the untrained base, from the order's own TOML."""
    config = tomllib.loads(order.config)
    orchestrator = config.get("orchestrator", {})
    sources = orchestrator.get("train", {}).get("source", [])
    if not sources:
        return None
    env = sources[0].get("env", {})
    if env.get("agent", {}).get("max_turns", 1) != 1:
        return None
    sampling, server = orchestrator["train"].get("sampling", {}), config.get("inference", {}).get("vllm", {})
    renderer = orchestrator.get("renderer", {})
    return {
        "taskset": env["taskset"],
        "base_path": order.base_path,
        "prompts": GATE_PROMPTS,
        "samples": GATE_SAMPLES,
        "temperature": sampling.get("temperature", 1.0),
        "max_tokens": sampling.get("max_completion_tokens", 512),
        "max_model_len": server.get("max_model_len", config.get("seq_len", 2048)),
        "gpu_memory_utilization": 0.8,
        "template": {key: renderer[key] for key in ("enable_thinking",) if key in renderer},
    }


def _gate_told(told: Mapping[str, Any]) -> str:
    if told.get("passed") is None:
        return f"gate: the untrained base was not asked ({told.get('why', '')})"
    return f"gate: the untrained base's mean reward is {told['mean']:.3f} on {told['prompts']} prompts"


_GATE = Path(__file__).parent / "gate.py"
