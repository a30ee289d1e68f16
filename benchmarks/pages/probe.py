"""Probes: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, judged, listed, table


def tables(found: Results) -> list[str]:
    rows = [
        (
            r["dialect"],
            r["cpu_s"],
            ", ".join(f"{name} {part:g}" for name, part in r["parts_s"].items()),
            r["wall_s"],
            r["first_s"],
            r["per_s_alone"],
            r["per_s_at_once"],
        )
        for r in found["rows"]
    ]
    many = found["settings"]["at_once"]
    return [
        table(
            (
                "dialect",
                "CPU-s",
                "of it",
                "wall-clock s",
                "the first, with the start",
                "a second, one by one",
                f"a second, {many} at once",
            ),
            rows,
        )
    ]


def verdict(found: Results) -> str:
    met = listed(
        [
            judged(f"{r['dialect']} dialect, median", r["cpu_s"], r["target_s"], least=False, unit=" CPU-s")
            for r in found["rows"]
        ]
    )
    return f"{met}\n\n{limit(found)}"


def limit(found: Results) -> str:
    told, cores, most = [], found["settings"]["cores"], found["settings"]["at_once"]
    for r in found["rows"]:
        parts = sorted(r["parts_s"].items(), key=lambda part: -part[1])
        told.append(", ".join(f"the {name} {part / sum(r['parts_s'].values()):.0%}" for name, part in parts))
    shares = "; ".join(f"{r['dialect']}: {share}" for r, share in zip(found["rows"], told, strict=True))
    busy = " and ".join(f"{r['busy_at_once']:.2g} ({r['dialect']})" for r in found["rows"])
    full = all(r["busy_at_once"] >= 0.9 * cores for r in found["rows"])
    bound = "the cores bound them" if full else "it is not the cores alone that bound them"
    return f"What limits it next, by shares of the CPU-seconds. {shares}. {most} at once keep {busy} of {cores} cores busy: {bound}."


SECTION = Section(
    source="probe",
    title="Probes",
    command=".venvs/verifiers/bin/python benchmarks/probe.py",
    what=(
        "An environment.py looked at in a fork of a warm, confined process. CPU-seconds are those of all threads of the controller (its own "
        "checks: which family does each row belong to, is each reply of the right kind), the warm process, and the fork that runs the job's "
        "code (for a taskset also verifiers' own scoring) together."
    ),
    tables=tables,
    verdict=verdict,
)
