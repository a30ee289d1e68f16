"""What the outer loop adds: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, judged, listed, span, table

OUTER = {
    "wall_s": "wall-clock, s",
    "episodes": "episodes, validations among them",
    "jobs_scoring_forks_s": "jobs, scoring and probes' forks, CPU-s",
    "agent_s": "the agent's sampling and updates, CPU-s",
    "probes_s": "probes in the controller, CPU-s",
    "grading_s": "grading, CPU-s",
    "controller_s": "the controller besides, CPU-s",
    "report_s": "of it the report, CPU-s",
    "writing_s": "of it writing episodes, CPU-s",
    "controller_s_per_episode": "the controller besides, CPU-s an episode",
    "wall_over_work": "wall-clock ÷ (work ÷ cores)",
    "busy_cores": "cores busy on average",
}


def tables(found: Results) -> list[str]:
    rows, asked = found["rows"], found["settings"]
    columns = (f"a pilot of {asked['steps']} steps", f"median of {len(rows)}", "lowest", "highest")
    return [
        table(
            columns,
            [
                (words, found["median"][key], min(r[key] for r in rows), max(r[key] for r in rows))
                for key, words in OUTER.items()
            ],
        )
    ]


def limit(found: Results) -> str:
    row, cores = found["median"], found["settings"]["cores"]
    idle_s, own_s = row["wall_s"] * (1 - row["busy_cores"] / cores), row["controller_s"] / cores
    work_s = row["wall_s"] - idle_s - own_s
    least, writing = (work_s + idle_s) / work_s, [r["writing_s"] for r in found["rows"]]
    return (
        f"What limits it next. Of {row['wall_s']:.0f} s, {work_s:.0f} s are the work itself on {cores} cores, {own_s:.0f} s the controller's own, and in "
        f"{idle_s:.0f} s a core has nothing to do: groups are trained in order, the agent's update and its next answers come before new jobs, and a "
        "validation ends with its last job (how much each of these waits takes was not measured apart). Without any of the controller's own work "
        f"{least:.2f} would be left, so less of it helps little; jobs of later steps would have to fill the waits. Of the controller's own, the report is "
        f"{row['report_s'] / row['controller_s']:.0%} and writing episodes {row['writing_s'] / row['controller_s']:.0%}: {span(writing, '.1f')} CPU-s, "
        "most in the last pilot (why was not measured here)."
    )


def verdict(found: Results) -> str:
    row = found["median"]
    return listed(
        [
            judged("wall-clock by work", row["wall_over_work"], found["targets"]["wall"], least=False),
            judged("the controller besides, an episode", row["controller_s_per_episode"], found["targets"]["controller_s"], least=False, unit=" CPU-s"),
        ]
    )  # fmt: skip


SECTION = Section(
    source="outer",
    title="What the outer loop adds",
    command="python benchmarks/outer.py",
    what=(
        "A whole pilot: wall-clock against the CPU-seconds of what it is for (jobs, scoring, probes, the agent's sampling and updates, "
        "grading), and the CPU-seconds of the controller besides, the report among them."
    ),
    tables=tables,
    verdict=verdict,
    limit=limit,
)
