"""`machines`: the rented machines of the account that carry our names."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from attrs import asdict
from cyclopts import App, Parameter

from nested_rl.errors import SettingsError

if TYPE_CHECKING:
    from nested_rl.compute.bills import Bill
    from nested_rl.compute.reaping import Ended, Held
    from nested_rl.compute.runpod_rest import RunpodRest

app = App(name="machines", help="Rented machines: what there is, what it costs, and the end of what nobody needs.")

Json: TypeAlias = Annotated[bool, Parameter(name="--json")]
FOLDER = Path("~/.nested_rl/runpod")
URL = "https://api.runpod.io"


@app.command(name="list")
def list_(*, folder: Path = FOLDER, url: str = URL, as_json: Json = False) -> None:
    """Show every pod of the account that carries one of our names.

    The key is RUNPOD_API_KEY, or that of the provider's own config file.

    Args:
        folder: The folder of `RunpodCompute`, whose journal tells the state and the controller.
        url: Another address of the provider's API.
        as_json: Print a JSON list.
    """
    from nested_rl import sync
    from nested_rl.clock import SystemClock
    from nested_rl.compute.reaping import survey

    place = folder.expanduser()

    async def look() -> list[Held]:
        async with _provider(url) as provider:
            return await survey(provider, place, clock=SystemClock())

    held = sync.run(look())
    if as_json:
        print(json.dumps([asdict(one) | {"name": str(one.name), "run": one.name.run, "due": one.due} for one in held]))
        return
    rows = [
        (
            str(one.name),
            one.id or "-",
            one.gpu or "-",
            one.status or "not there",
            one.state or "-",
            f"{one.usd_per_hour:.2f}",
            _time(one.age_s),
            _time(one.left_s),
            one.due or one.owner,
        )
        for one in held
    ]
    _table(("name", "pod", "GPU", "provider", "journal", "$/h", "age", "left", "controller"), rows)
    print(f"{len(held)} pods with our names, ${sum(one.usd_per_hour for one in held if one.status):.2f} an hour")


@app.command
def reap(
    *,
    everything: Annotated[bool, Parameter(name="--all")] = False,
    yes: bool = False,
    folder: Path = FOLDER,
    wait_s: float = 60.0,
    patience_s: float = 120.0,
    url: str = URL,
    as_json: Json = False,
) -> int:
    """End the pods that nobody looks after any more.

    Those are the pods with our names that are past their deadline, and those of the journal in `folder` whose controller has ended. One whose controller runs
    is never touched, nor is a pod with another name. Safe to run from a timer. Exit code 1 when something could not be ended.

    Args:
        everything: End every pod with our names, also those of a controller that runs. Asks first.
        yes: Do not ask.
        folder: The folder of `RunpodCompute`, with its journal.
        wait_s: How long a controller that is only being started again has to come back for its pods.
        patience_s: How long the provider has to confirm the end of a pod.
        url: Another address of the provider's API.
        as_json: Print a JSON list.
    """
    from nested_rl import sync
    from nested_rl.clock import SystemClock
    from nested_rl.compute.reaping import reap as end
    from nested_rl.compute.reaping import still_there

    if everything and not yes:
        _ask("End every pod of this account whose name begins with nrl-, also those that work?")

    place, clock = folder.expanduser(), SystemClock()

    async def work() -> list[Ended]:
        async with _provider(url) as provider:
            return await end(provider, place, clock=clock, wait_s=wait_s, patience_s=patience_s, everything=everything)

    ended = sync.run(work())
    if as_json:
        print(json.dumps([asdict(one) | {"name": str(one.name)} for one in ended]))
    else:
        for one in ended:
            print(f"{one.name} ({one.id or 'never made'}): {one.why}; {one.trouble or 'ended'}")
        print(f"{len(ended) - len(still_there(ended))} ended, {len(still_there(ended))} still there")
    return 1 if still_there(ended) else 0


@app.command
def cost(
    run: Path | None = None,
    /,
    *,
    folder: Path = FOLDER,
    by: Literal["kind", "job", "episode", "step"] = "kind",
    billing: bool = False,
    url: str = URL,
    as_json: Json = False,
) -> None:
    """Say what machines cost, by what for.

    Of a run directory it is the run's ledger, with the agent's tokens where they cost something; without one, all pods of the journal in `folder`. With --billing the
    provider's own figures stand beside ours, pod by pod; each answer is also added to bills.jsonl, in the run directory or the folder.

    Args:
        run: A run directory.
        folder: The folder of `RunpodCompute`, with its journal.
        by: Of a run: by kind of cost, or by job, episode or step, which all add up to the same.
        billing: Ask the provider what it has billed; figures lag by hours.
        url: Another address of the provider's API.
        as_json: Print {"spent": [...], "bills": [...]}.
    """
    from nested_rl import sync
    from nested_rl.clock import SystemClock
    from nested_rl.compute.bills import BILLS, Spent, bills, of_journal, of_run, told
    from nested_rl.rundir import Log, RunDir
    from nested_rl.shares import shares

    place, clock = folder.expanduser() if run is None else run, SystemClock()
    spent, pods = of_journal(place, now=clock.now()) if run is None else of_run(RunDir.open(run))

    if by != "kind":
        if run is None:
            raise SettingsError(f"--by {by} is for a run directory: nested-rl machines cost RUN --by {by}")
        found_by = shares(RunDir.open(run), by).items()
        spent = [Spent(run=str(run), kind=name or "nobody's", seconds=0.0, usd=usd) for name, usd in found_by]

    async def ask() -> list[Bill]:
        async with _provider(url) as provider:
            return await bills(provider, pods, Log(place / BILLS), clock=clock)

    found = sync.run(ask()) if billing else []
    if as_json:
        print(json.dumps({"spent": [asdict(one) for one in spent], "bills": [told(bill) for bill in found]}))
        return
    total = sum(one.usd for one in spent)
    rows = [(one.run, one.kind, _time(one.seconds) if one.seconds else "-", f"{one.usd:.4f}") for one in spent]
    _table(("run", by, "time", "$"), [*rows, ("", "all", "", f"{total:.4f}")])
    if billing:
        _compare(found)


def _compare(found: Sequence[Bill]) -> None:
    rows = [
        (bill.pod, bill.pod_id, f"{bill.usd:.4f}", *(_usd(usd) for usd in (bill.billed_usd, bill.difference_usd)))
        for bill in found
    ]
    both = [bill for bill in found if bill.billed_usd is not None]
    ours, theirs = sum(bill.usd for bill in both), sum(bill.billed_usd or 0.0 for bill in both)
    print()
    _table(("pod", "id", "ours", "billed", "difference"), rows)
    print(
        f"{len(both)} of {len(found)} pods are billed: ${ours:.4f} by our reckoning, ${theirs:.4f} by the provider's, "
        f"${ours - theirs:.4f} apart"
    )


def _usd(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:.4f}"


@contextlib.asynccontextmanager
async def _provider(url: str) -> AsyncIterator[RunpodRest]:
    from nested_rl.compute.runpod_rest import RunpodRest

    provider = RunpodRest(url=url)
    try:
        yield provider
    finally:
        await provider.close()


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise SettingsError(f"{question} Nobody is there to say so: give --yes")
    print(f"{question} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SettingsError("nothing was ended")


def _time(seconds: float) -> str:
    """Such as 2h05m; with a minus when it is over.

    >>> _time(7510), _time(-59)
    ('2h05m', '-0m59s')
    """
    whole, sign = round(abs(seconds)), "-" if seconds < 0 else ""
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{sign}{hours}h{minutes:02d}m" if hours else f"{sign}{minutes}m{whole % 60:02d}s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
