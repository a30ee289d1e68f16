"""Machines behind SSH: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, table


def tables(found: Results) -> list[str]:
    rows = [(r["what"], r["wall_s"], r["sent_mb"], r["received_mb"], r["connections"]) for r in found["rows"]]
    return [table(("what", "wall-clock s", "MB sent", "MB back", "new connections"), rows)]


def verdict(found: Results) -> str:
    seconds = found["seconds"]
    first, following = seconds["first lease, 5 MB, first step"], seconds["next lease, another 5 MB, first step"]
    again = seconds["the same 50 MB there again, under another name"]
    return (
        f"scp takes {found['ratios']['50 MB: scp ÷ ours']:.2g} times as long as “50 MB there”. It makes a connection of its own, and ours is "
        f"open already: 1 byte by scp takes {seconds['1 byte there, by scp']:.2g} s.\n\n"
        "One connection serves all leases, and a file that the machine has is not sent again. What limits it next: the first lease takes "
        f"{first - following:.2g} s longer than the next, for it connects, starts two Python programs there and loads numpy. 50 MB are encrypted by "
        f"one thread, and are hashed on both sides; when they are not sent again, hashing them and copying them there takes {again:.2g} of "
        f"{seconds['50 MB there']:.2g} s."
    )


SECTION = Section(
    source="transfer",
    title="Machines behind SSH",
    command=".venvs/bench/bin/python benchmarks/transfer.py",
    what=(
        "A real sshd on loopback, behind a relay that counts connections and bytes, in a process of its own. Wall-clock from asking for a lease "
        "to the end of the first training step of a nano job, 5 MB put there before it: on a host that was never seen, on the next lease, and "
        "with the same data again. The job does not read the 5 MB, since the data of a nano job is bounded to a twentieth of that. Then an "
        "adapter of 50 MB, beside scp."
    ),
    tables=tables,
    verdict=verdict,
)
