"""What is rented in our name and whose it is; and the end of what nobody looks after any more.

A name tells that a pod is ours and until when it may live; the journal of its controller tells the rest, and the journal's lock
whether that controller runs. This works without a controller, from a timer, on any computer that has the account's key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from attrs import frozen

from nested_rl import redact
from nested_rl.clock import Clock
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_roster import Journal, Rented, Roster, State
from nested_rl.compute.provider import Gone, Pod, Provider, ProviderError
from nested_rl.errors import RunDirError, SettingsError
from nested_rl.rundir import Log

log = redact.logger(__name__)

Owner: TypeAlias = Literal["running", "ended", "elsewhere"]
"""The pod's controller runs; has ended without ending the pod; or is none of this folder's, so that nothing is known of it."""
JOURNAL: Final = "pods.jsonl"
ASK_AGAIN_S: Final = 3.0


@frozen(kw_only=True)
class Held:
    """One pod with a name of ours. `state` is the journal's, `status` the provider's; empty where it knows nothing of the pod.

    `age_s` counts from its creation, `left_s` to its deadline and is negative after it.
    """

    name: PodName
    id: str
    status: str
    state: str
    owner: Owner
    gpu: str
    usd_per_hour: float
    age_s: float
    left_s: float

    @property
    def due(self) -> str:
        """Why it is to be ended, or nothing."""
        if self.owner == "running":
            return ""
        if self.left_s < 0:
            return f"past its deadline by {-self.left_s:.0f} s"
        return "its controller has ended" if self.owner == "ended" else ""


@frozen(kw_only=True)
class Ended:
    """What came of one: `trouble` is why it is still there, empty when the provider has confirmed its end."""

    name: PodName
    id: str
    why: str
    trouble: str = ""


async def survey(provider: Provider, folder: Path, *, clock: Clock) -> list[Held]:
    """Every pod of the account with a name of ours, and those that only the journal in `folder` knows. Changes nothing."""
    with _claimed(folder) as journal:
        running = journal is None and (folder / JOURNAL).exists()
    return await _held(provider, _roster(folder, clock), running=running, clock=clock)


async def reap(
    provider: Provider,
    folder: Path,
    *,
    clock: Clock,
    wait_s: float = 60.0,
    patience_s: float = 120.0,
    everything: bool = False,
) -> list[Ended]:
    """End each pod that is past its deadline or whose controller has ended; never one whose controller runs.

    A controller that is only being started again has `wait_s` to come back for its pods. `everything` is for all pods with our
    names, whosever they are. Raises ProviderError when the pods cannot be listed.
    """
    held = await survey(provider, folder, clock=clock)
    if not everything and any(one.owner == "ended" and one.left_s >= 0 for one in held):
        await clock.sleep(wait_s)
    with _claimed(folder) as journal:
        running = journal is None and (folder / JOURNAL).exists()
        roster = _roster(folder, clock, journal)
        held = await _held(provider, roster, running=running, clock=clock)
        told = [(one, "asked for" if everything else one.due) for one in held]
        pods = {name: pod for name, pod in roster.pods.items() if journal is not None}

        async def end(one: Held, why: str) -> Ended:
            return await _end(provider, one, why, roster, pods.get(str(one.name)), clock=clock, patience_s=patience_s)

        return await asyncio.gather(*(end(one, why) for one, why in told if why))


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[Journal | None]:
    """The journal, held so that no controller starts meanwhile; None when there is none, or a controller has it."""
    journal = None
    if (folder / JOURNAL).exists():
        try:
            journal = Journal(folder / JOURNAL)
        except SettingsError:
            pass  # a controller has it
        except OSError as error:
            raise RunDirError(f"{folder}: {error.strerror}; this is for the user whose controller it is") from error
    try:
        yield journal
    finally:
        if journal is not None:
            journal.release()


def _roster(folder: Path, clock: Clock, journal: Journal | None = None) -> Roster:
    """With the journal to write to, or only to read."""
    return Roster(journal or Log(folder / JOURNAL), clock=clock)


async def _held(provider: Provider, roster: Roster, *, running: bool, clock: Clock) -> list[Held]:
    shown = {pod.name: pod for pod in await provider.list() if PodName.read(pod.name) is not None}
    names = dict.fromkeys([*shown, *(str(pod.name) for pod in roster.alive())])
    owner: Owner = "running" if running else "ended"
    held = [
        _told(shown.get(name), rented, owner if rented is not None else "elsewhere", name, clock)
        for name, rented in ((name, roster.pods.get(name)) for name in names)
    ]
    return sorted(held, key=lambda one: (one.name.run, one.name.slot, one.name.nonce))


def _told(pod: Pod | None, rented: Rented | None, owner: Owner, text: str, clock: Clock) -> Held:
    name = PodName.read(text)
    assert name is not None
    born = pod.created_at if pod is not None else None
    if born is None and rented is not None:
        born = float(rented.lines[0]["t"])
    return Held(
        name=name,
        id=pod.id if pod is not None else rented.id if rented is not None else "",
        status=pod.status if pod is not None else "",
        state=str(rented.state) if rented is not None else "",
        owner=owner,
        gpu=f"{pod.gpus}x {pod.gpu}" if pod is not None and pod.gpu else rented.candidate.name if rented else "",
        usd_per_hour=(pod.usd_per_hour if pod is not None else 0.0) or (rented.usd_per_hour if rented else 0.0),
        age_s=max(0.0, clock.now() - born) if born is not None else 0.0,
        left_s=name.deadline - clock.now(),
    )


async def _end(
    provider: Provider, one: Held, why: str, roster: Roster, rented: Rented | None, *, clock: Clock, patience_s: float
) -> Ended:
    """Ask for its end until that is confirmed; into the journal first, where it is ours to write."""
    trouble = ""
    if rented is not None and one.id:
        more = {"id": one.id, "usd_per_hour": one.usd_per_hour, "seen": one.status not in ("", "terminated") or None}
        roster.move(rented, State.TERMINATING, must=False, why=why, **more)
    if one.id:
        trouble = await _until_gone(provider, one.id, clock=clock, patience_s=patience_s)
    if rented is not None and not trouble:
        roster.move(rented, State.GONE, must=False, why=why)
    return Ended(name=one.name, id=one.id, why=why, trouble=trouble)


async def _until_gone(provider: Provider, pod_id: str, *, clock: Clock, patience_s: float) -> str:
    """Nothing when it is gone, else what stood in the way."""
    until_s = clock.monotonic() + patience_s
    while True:
        trouble = "the provider was asked, and it is still there"
        for ask in (provider.terminate, provider.get):
            try:
                await ask(pod_id)
            except Gone:
                return ""
            except (ProviderError, SettingsError) as error:
                trouble = str(error)
        if clock.monotonic() >= until_s:
            return trouble
        await clock.sleep(ASK_AGAIN_S)


def still_there(ended: Sequence[Ended]) -> list[Ended]:
    """Those that could not be ended."""
    return [one for one in ended if one.trouble]
