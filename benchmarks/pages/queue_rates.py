"""The job queue: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, judged, listed, table


def tables(found: Results) -> list[str]:
    rates = [
        (
            r["queue"],
            r["processes"],
            f"{r['waits_a_job']:g}",
            f"{r['jobs_per_s']:,g}",
            f"{r['ratio']:g} × {r['by']}" if r["by"] else "",
        )
        for r in found["rows"]
    ]
    depths = [(f"{r['waiting']:,}", r["wall_ms"], r["cpu_ms"]) for r in found["depths"]]
    settings = found["settings"]
    return [
        table(("queue", "processes", "waits for the disk a job", "jobs a second", "compared with"), rates),
        (
            f"A lease, with {settings['done']:,} jobs done and {settings['running']} running besides; medians over {settings['leases']} "
            f"different jobs in each of {settings['rounds']} rounds. For every job that is leased a new one is put."
        ),
        table(("jobs waiting", "wall-clock ms of a lease", "CPU-ms"), depths),
    ]


def verdict(found: Results) -> str:
    few, many = (f"{r['waiting']:,}" for r in found["depths"])
    alone = {r["queue"]: r for r in found["rows"] if r["processes"] == 1}
    without, json_ms, threads_ms = 1e3 / alone["nested_rl, not synced"]["jobs_per_s"], found["apart"]["json_ms"], found["apart"]["threads_ms"]  # fmt: skip
    waits = 1e3 / alone["nested_rl"]["jobs_per_s"] - without
    limit = (
        f"What limits it next. With one process a job takes {waits + without:.2f} ms: {waits:.2f} ms for the disk; of the rest, measured "
        f"apart, {json_ms:.2f} ms to write, redact, read and check its JSON, and {threads_ms:.2f} ms to change threads for the two waits. "
        f"litequeue, which neither waits nor checks what it is given, takes {1e3 / alone['litequeue']['jobs_per_s']:.2f} ms in all. Several processes wait for "
        "each other: SQLite has one place for a writer. A run has one controller, so one process is the usual case."
    )
    target = judged(
        f"a lease with {many} jobs waiting by one with {few}", found["ratios"]["lease, by depth"], found["target"], least=False, unit="×"
    )  # fmt: skip
    return f"{listed([target])}\n\n{limit}"


SECTION = Section(
    source="queue_rates",
    title="The job queue",
    command=".venvs/bench/bin/python benchmarks/queue_rates.py",
    what=(
        "Jobs of 1 KB put, leased and finished by 1, 4 and 16 processes on one file, beside two well-known queues on SQLite. They do not "
        "promise the same. What was put and what was finished here is on the disk when the call returns (“not synced” is without that wait); "
        "persist-queue waits for the disk with its leases too, litequeue never does, so each is compared with ours that waits, or does not, "
        "as it does. Besides, a lease that runs out is handed on here, and a job has one key and one result. persist-queue keeps its items "
        "in hand in memory, so it is asked by one process only."
    ),
    tables=tables,
    verdict=verdict,
)
