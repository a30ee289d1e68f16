"""Every pod the pool has ever meant to rent, and in which state it is: in the journal first, then so.

INTENT → CREATING → BOOTING → PREFLIGHT → READY ⇄ BUSY → DRAINING → TERMINATING → GONE, and LOST for what went by itself
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from attrs import define, field

from nested_rl import redact, scratch, serialize
from nested_rl.clock import Clock
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.provider import Candidate, Pod
from nested_rl.errors import RunDirError, SettingsError
from nested_rl.interfaces import Machine
from nested_rl.rundir import Log
from nested_rl.types import JSON

log = redact.logger(__name__)


class State(StrEnum):
    """Where in its life a pod is."""

    INTENT = "intent"
    CREATING = "creating"
    BOOTING = "booting"
    PREFLIGHT = "preflight"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    LOST = "lost"
    TERMINATING = "terminating"
    GONE = "gone"


_UP: Final = frozenset({State.DRAINING, State.LOST, State.TERMINATING, State.BOOTING})
"""Whatever is up may be let go, get lost, or be taken over by the next controller, which starts with BOOTING."""
NEXT: Final[Mapping[State, frozenset[State]]] = {
    State.INTENT: frozenset({State.CREATING, State.GONE}),
    State.CREATING: frozenset({State.BOOTING, State.TERMINATING, State.GONE}),
    State.BOOTING: _UP | {State.PREFLIGHT},
    State.PREFLIGHT: _UP | {State.READY},
    State.READY: _UP | {State.BUSY},
    State.BUSY: _UP | {State.READY},
    State.DRAINING: frozenset({State.TERMINATING, State.LOST}),
    State.LOST: frozenset({State.TERMINATING, State.GONE}),
    State.TERMINATING: frozenset({State.TERMINATING, State.GONE}),
    State.GONE: frozenset({State.TERMINATING}),  # the provider shows it after all
}
BULKY: Final = 5000
"""Lines of a journal that may stay as it is: half a megabyte."""
LATE_S: Final = 3600.0
"""A pod that nobody has seen by then, after its deadline, is none."""
BEAT_S: Final = 120.0
"""So often there is a line of each pod that may cost money, for whoever asks later how long its controller lived."""
Row: TypeAlias = Mapping[str, JSON]
COMING: Final = frozenset({State.INTENT, State.CREATING, State.BOOTING, State.PREFLIGHT})


class PodMachine(Protocol):
    """What the pool asks of the connection to a pod, beside that it is a Machine."""

    @property
    def connected(self) -> bool:
        """Whether its line was up when last heard of."""

    async def end_lease(self) -> bool:
        """Leave only what is warm. False when it cannot be used again as it is."""

    async def recycle(self) -> None:
        """End everything that runs there, also what is warm."""

    async def close(self) -> None:
        """Let go; whoever still uses it gets MachineLost."""


@define(eq=False, kw_only=True)
class Rented:
    """One pod of ours. `gone` is what the provider has confirmed; `lost` that it went without being asked.

    `beat` is when its newest line was written, `sighted` whether the provider has shown it since a time in which nobody looked.
    `called_off` cuts short what is wanted of it, `abandoned` also the wait for its end: its lease and the next controller see to that.
    """

    name: PodName
    candidate: Candidate
    state: State = State.INTENT
    since_s: float = 0.0
    born_s: float = 0.0
    id: str = ""
    usd_per_hour: float = 0.0
    seen: Pod | None = None
    machine: Machine | None = None
    line: PodMachine | None = None
    jobs: int = 0
    paid_to_s: float = 0.0
    restarts: int = 0
    lost: bool = False
    gone: bool = False
    called_off: bool = False
    abandoned: bool = False
    begun: bool = False
    beat: float = 0.0
    sighted: bool = True
    why: str = ""
    ledger: str = ""
    lines: list[Mapping[str, JSON]] = field(factory=list)
    leave: asyncio.Event = field(factory=asyncio.Event)
    life: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether it may cost money."""
        return self.state is not State.GONE

    def retire(self, why: str) -> None:
        """It is let go as soon as its life looks."""
        self.why = self.why or why
        self.leave.set()


class Lines(Protocol):
    """Where the journal's lines go: `rundir.Log`, or a list in tests."""

    def append(self, row: Mapping[str, JSON], *, sync: bool = False) -> None:
        """Durable before it returns."""

    def rows(self) -> Iterable[Mapping[str, JSON]]:
        """All lines so far."""


@runtime_checkable
class Rewritable(Protocol):
    """Lines that may be put in place of the ones that are there."""

    def rewrite(self, rows: Iterable[Mapping[str, JSON]], *, sync: bool = False) -> None:
        """All or nothing."""


class Roster:
    """The pods of one run by name. `move` is the only way to change a state. What is from now on is paid by `ledger`."""

    def __init__(self, lines: Lines, *, clock: Clock) -> None:
        self.pods: dict[str, Rented] = {}
        self._alive: dict[str, Rented] = {}
        self._in: dict[State, dict[str, Rented]] = {state: {} for state in State if state is not State.GONE}
        self._news: list[Rented] = []
        self.ledger = ""
        self._lines, self._clock = lines, clock
        self._epoch_s = clock.now() - clock.monotonic()
        rows = list(lines.rows())
        self._written, self._folded = len(rows), 0
        self._not_before = max((float(row["t"]) for row in rows), default=0.0)
        for row in rows:
            self._again(row)

    @property
    def now(self) -> float:
        """Seconds since the epoch that never run backwards, also from one controller to the next."""
        return max(self._epoch_s + self._clock.monotonic(), self._not_before)

    def lines(self) -> list[Mapping[str, JSON]]:
        """The journal, pod by pod, for whoever reckons with it."""
        return [line for pod in self.pods.values() for line in pod.lines]

    def alive(self) -> list[Rented]:
        """Every pod that may cost money."""
        return list(self._alive.values())

    def of(self, states: Container[State]) -> list[Rented]:
        """Those of `alive` in these states, without a look at all others: of a thousand pods most are at work."""
        return [pod for state, pods in self._in.items() if state in states for pod in pods.values()]

    def news(self) -> list[Rented]:
        """Those that are in a new state since this was last asked."""
        news, self._news = self._news, []
        return news

    def intend(
        self, name: PodName, candidate: Candidate, *, usd_per_hour: float, alone_s: float | None = None
    ) -> Rented:
        """A new pod, on paper only. `alone_s` is how long it lives without its controller."""
        now_s = self._clock.monotonic()
        pod = Rented(name=name, candidate=candidate, usd_per_hour=usd_per_hour, since_s=now_s, born_s=now_s)
        pod.paid_to_s = now_s
        told = {"candidate": serialize.to_json(candidate), "usd_per_hour": usd_per_hour}
        told |= {} if alone_s is None else {"alone_s": alone_s}
        self._write(pod, self._line(pod, State.INTENT, told))
        self.pods[str(name)] = self._alive[str(name)] = self._in[State.INTENT][str(name)] = pod
        return pod

    def move(self, pod: Rented, state: State, *, must: bool = True, **fields: JSON) -> None:
        """Into the journal, then into `state`. With `must=False` a journal that cannot be written stops nothing: for ways out."""
        if state not in NEXT[pod.state]:
            raise RuntimeError(f"{pod.name}: {pod.state} does not become {state}")
        line = self._line(pod, state, fields)
        try:
            self._write(pod, line)
        except RunDirError as error:
            if must:
                raise
            log.error("%s becomes %s, which the journal cannot tell: %s", pod.name, state, error)  # noqa: TRY400
            self._keep(pod, line)
        pod.since_s = self._clock.monotonic()
        self._became(pod, state)

    def _became(self, pod: Rented, state: State) -> None:
        name = str(pod.name)
        if pod.alive:
            self._in[pod.state].pop(name, None)
        pod.state = state
        self._news.append(pod)
        if pod.alive:
            self._alive[name] = self._in[state][name] = pod  # one that was gone may turn up again
        else:
            self._alive.pop(name, None)

    def known(self, pod: Rented, made: Pod) -> None:
        """What the provider says of it: its id, and what it costs now."""
        pod.id, pod.seen = made.id, made
        pod.usd_per_hour = made.usd_per_hour or pod.usd_per_hour

    def dearer(self, pod: Rented, usd_per_hour: float) -> None:
        """It costs something else from now on."""
        self._write(pod, self._line(pod, pod.state, {"usd_per_hour": usd_per_hour}))
        pod.usd_per_hour = usd_per_hour

    def sign(self, pod: Rented, *, seen: bool) -> None:
        """The controller lives; `seen`: the provider shows the pod. Told when that is news, and every `BEAT_S`."""
        due = self.now - pod.beat >= (BEAT_S if seen else 1.25 * BEAT_S)  # unless this look has told it
        if not pod.alive or not pod.id or not (due or (seen and not pod.sighted)):
            return
        line = self._line(pod, pod.state, {"beat": True, "seen": seen or None})
        pod.sighted = seen
        try:
            self._write(pod, line)
        except RunDirError as error:
            log.warning("the pods' journal cannot tell that %s is there: %s", pod.name, error)
            self._keep(pod, line)

    @property
    def bulky(self) -> bool:
        """Whether the journal has more than twice the lines that it had when it was last made shorter."""
        return isinstance(self._lines, Rewritable) and self._written > max(BULKY, 2 * self._folded)

    def fold(self, closed: Callable[[Rented], bool], folded: Callable[[Sequence[Row]], list[Row]]) -> None:
        """Make the journal shorter: fewer lines of each pod that is gone and `closed`, none of one that never was and cannot come."""
        assert isinstance(self._lines, Rewritable)
        for name, pod in list(self.pods.items()):
            if not pod.alive and not pod.id and self.now > pod.name.deadline + LATE_S:
                del self.pods[name]
            elif not pod.alive and closed(pod):
                pod.lines = folded(pod.lines)
        rows = self.lines()
        try:
            self._lines.rewrite(rows, sync=True)
        except RunDirError as error:
            log.warning("the pods' journal stays long: %s", error)
        else:
            self._written = len(rows)
        self._folded = self._written

    def _line(self, pod: Rented, state: State, fields: Mapping[str, JSON]) -> Mapping[str, JSON]:
        told = {name: value for name, value in fields.items() if value not in (None, "")}
        if pod.ledger != self.ledger:
            told["ledger"] = self.ledger
        return {"t": self.now, "pod": str(pod.name), "state": str(state), **told}

    def _write(self, pod: Rented, line: Mapping[str, JSON]) -> None:
        self._lines.append(line, sync=True)
        self._written += 1
        self._keep(pod, line)

    @staticmethod
    def _keep(pod: Rented, line: Mapping[str, JSON]) -> None:
        pod.lines.append(line)
        pod.ledger, pod.beat = str(line.get("ledger", pod.ledger)), float(line["t"])

    def _again(self, row: Mapping[str, JSON]) -> None:
        """One line of an earlier controller."""
        name = PodName.read(str(row["pod"]))
        if name is None:
            raise RunDirError(f"the pool's journal names {row['pod']!r}, which is no pod of ours")
        if str(name) not in self.pods:
            candidate = serialize.from_json(row["candidate"], Candidate)
            self.pods[str(name)] = Rented(name=name, candidate=candidate)
        pod = self.pods[str(name)]
        self._keep(pod, row)
        pod.sighted = False
        if "beat" in row:
            return
        self._became(pod, State(row["state"]))
        pod.id = str(row.get("id", pod.id))
        pod.usd_per_hour = float(row.get("usd_per_hour", pod.usd_per_hour))
        pod.since_s = float(row["t"]) - self._epoch_s
        if pod.state is State.INTENT:
            pod.born_s = pod.paid_to_s = pod.since_s


class Journal(Log):
    """The pool's journal in a file, which one controller at a time may have."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.read(self._lock, 100).decode(errors="replace")
            os.close(self._lock)
            raise SettingsError(
                f"another controller{who and f' ({who})'} has the pods of {path.parent} and runs. Wait for its end or stop it; a "
                "second run at the same time needs a folder of its own: RunpodCompute(..., folder='~/.nested_rl/another')"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} of {socket.gethostname()}".encode(), 0)
        scratch.sweep(path.parent)

    def release(self) -> None:
        """Close it, and let another controller have the pods."""
        self.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
