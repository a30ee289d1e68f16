"""The schedule: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, judged, listed, table

FLAT = 1.25
"""What a job takes with the most machines by what it takes with the fewest: up to here it is called flat."""


def tables(found: Results) -> list[str]:
    makespan = [(r["k"], f"{r['ratio']:.2f}", f"{r['lowest']:.2f} to {r['highest']:.2f}", f"{r['staleness_mean']:.1f}") for r in found["makespan"]["rows"]]  # fmt: skip
    compared = [
        (
            r["name"],
            f"{r['wall_clock_by_synchronous']:.2f}",
            f"{r['trained_by_paid_jobs']:.2f}",
            f"{r['trained_job_s_by_all']:.2f}",
            f"{r['staleness_max']:.0f}",
        )
        for r in found["compared"]["rows"]
    ]
    return [
        _setting("Jobs alone", found["makespan"]),
        table(
            ("steps off-policy", "wall-clock by the lower bound", "lowest to highest seed", "mean staleness"), makespan
        ),
        _setting("Three ways with stale work, on the same draws", found["compared"]),
        table(
            (
                "schedule",
                "wall-clock by synchronous",
                "trained by paid jobs",
                "mean seconds of a trained job by all jobs'",
                "largest staleness of a group",
            ),
            compared,
        ),
        *_published_tables(found["published"]),
        *_scale_tables(found["scale"]),
    ]


def _setting(what: str, part: Results) -> str:
    machines, jobs, steps, seeds = (part[key] for key in ("machines", "jobs_a_step", "steps", "seeds"))
    return f"{what}: {machines} machines, {jobs} jobs a step, {steps} steps, {seeds} seeds."


def _published_tables(part: Results) -> list[str]:
    row = (
        f"{part['wall_clock_h']:.1f}",
        f"{part['jobs']:,.0f}",
        f"{part['machine_hours']:.0f}",
        f"{part['utilisation']:.0%}",
        f"{part['dropped']:.0f}",
        f"{part['staleness_mean']:.1f}",
        f"{part['staleness_max']:.0f}",
    )
    headings = (
        "wall-clock, h", "jobs", "pod hours", "of them with a job", "groups dropped", "mean staleness", "largest staleness",
    )  # fmt: skip
    return [
        (
            f"The setting of the published run: {part['machines']} rented pods, {part['steps']} steps, {part['groups']} groups of "
            f"{part['group_size']}, medians of {part['seeds']} seeds. The times are assumed, as a plan at full scale assumes them; what the "
            "schedule makes of them is simulated."
        ),
        table(headings, [row]),
    ]


def _scale_tables(part: Results) -> list[str]:
    rows = [
        (
            f"{r['machines']:,.0f}",
            f"{r['jobs_a_step']:,.0f}",
            f"{r['jobs']:,.0f}",
            f"{r['cpu_ms_a_job']:.2f}",
            f"{r['choosing_ms_a_job']:.2f}",
            f"{r['peak_mb']:.0f}",
            f"{r['kb_a_job']:.1f}",
        )
        for r in part["rows"]
    ]
    headings = (
        "machines", "jobs a step", "jobs", "controller's CPU-ms a job", "of it the pool's choosing", "peak MB", "kB a job",
    )  # fmt: skip
    return [
        f"The controller by the number of its machines: {part['steps']} steps, each size the median of {part['runs']} runs.",
        table(headings, rows),
    ]


def verdict(found: Results) -> str:
    makespan = {r["k"]: r["ratio"] for r in found["makespan"]["rows"]}
    by, least, most = found["scale"]["most_by_least"], found["scale"]["rows"][0], found["scale"]["rows"][-1]
    sizes = f"with {most['machines']:,.0f} machines by that with {least['machines']:,.0f}"
    sentences = [
        judged("Wall-clock by the lower bound, 2 steps off-policy", makespan[2], 1.10, least=False),
        judged(f"Cores for {most['machines']:,.0f} machines", most["cores"], 1.0, least=False),
        judged(f"Memory for {most['machines']:,.0f} machines", most["peak_mb"], 500, least=False, unit=" MB"),
        judged(f"CPU of a job {sizes} (flat is 1)", by["cpu_ms_a_job"], FLAT, least=False, unit="×"),
        judged(f"Memory of a job {sizes} (flat is 1)", by["kb_a_job"], FLAT, least=False, unit="×"),
    ]
    if by["cpu_ms_a_job"] > FLAT:
        more, chosen = (most[key] - least[key] for key in ("cpu_ms_a_job", "choosing_ms_a_job"))
        without = [r["cpu_ms_a_job"] - r["choosing_ms_a_job"] for r in (most, least)]
        sentences.append(
            f"Of the {more:.2f} CPU-ms that a job takes more, {chosen:.2f} are the pool's choosing: whenever something changes it goes "
            f"through all pods and all who wait for one. Without that a job takes {without[0] / without[1]:.2f}×; to get there the pool "
            "would have to keep its pods by their state."
        )
    third = 1 - makespan[3] / makespan[2]
    limit = f"What limits it next. A third step off-policy takes {third:.1%} off the wall-clock: machines do not wait for staleness then."
    return "\n\n".join([listed(sentences), _dropping(found["compared"]), limit if third < 0.01 else ""]).rstrip()


def _dropping(part: Results) -> str:
    """What it costs, when it costs anything."""
    row = next(r for r in part["rows"] if r["name"].startswith("dropping"))
    lost, shorter = 1 - row["trained_by_paid_jobs"], 1 - row["trained_job_s_by_all"]
    return (
        f"Dropping: {lost:.0%} of the paid jobs are not trained on, and the jobs that are trained on are {shorter:.0%} shorter than all "
        "on average, since a group is stale when one of its jobs was slow."
    )


SECTION = Section(
    source="schedule",
    title="The schedule",
    command="python benchmarks/schedule.py",
    what=(
        "The real loop, workers, queue in memory and pool on simulated machines and a clock that jumps. First jobs alone: a job's time is "
        "log-normal (σ = 0.5), every twentieth takes four times as long, and nothing else takes time. The lower bound is all work by the "
        "machines. Then simulated pods, with boots, refusals and losses, two steps off-policy; the controller's CPU and memory are those of "
        "the whole program, the simulated provider's share included, without what loading it takes."
    ),
    tables=tables,
    verdict=verdict,
)
