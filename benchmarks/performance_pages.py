"""The sections of docs/performance.md: how each result is shown, whether its target is met, and what limits it next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

Results = Mapping[str, Any]


@frozen(kw_only=True)
class Section:
    """One section. `source` is its file in results/; `command` makes that file."""

    source: str
    title: str
    command: str
    what: str
    tables: Callable[[Results], Sequence[str]]
    verdict: Callable[[Results], str] = lambda _: ""
    limit: str | Callable[[Results], str] = ""


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def judged(what: str, value: float, target: float, *, least: bool, unit: str = "") -> str:
    """Target and measured value in one sentence."""
    met = value >= target if least else value <= target
    bound = "at least" if least else "at most"
    return f"{what}: {bound} {target:g}{unit} wanted, {value:.3g}{unit} measured, {'met' if met else '**not met**'}."


def listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"* {sentence}" for sentence in sentences)


# ---------------------------------------------------------------- the engine


def span(values: Iterable[float], form: str = ".0%") -> str:
    """From the least to the most."""
    known = list(values)
    return f"{min(known):{form}} to {max(known):{form}}"


def engine_tables(found: Results) -> list[str]:
    rows = [
        (f"`{r['base']}`", r["work"], r["engine"], r["cpu_ms"], f"{r['tokens_per_s']:,}", f"{r['numpy_faster']:g}", f"{r['lowest']:g} to {r['highest']:g}")
        for r in found["rows"]
    ]  # fmt: skip
    limits = [
        (
            f"`{r['base']}`",
            r["work"],
            f"{r['gflops']:g} of {r['peak_gflops']:g}",
            f"{r['of_peak']:.0%}",
            f"{r['products']:.0%}",
            f"{r['products_of_peak']:.0%}",
            ", ".join(f"{name} {share:.0%}" for name, share in r["shares"].items()),
            f"{r['unaccounted']:.0%}",
        )
        for r in found["limits"]
    ]
    return [
        table(("base", "work", "engine", "CPU-ms", "tokens/s", "numpy is faster by", "lowest to highest round"), rows),
        (
            "Against the machine: GFLOP/s of the products, over all the time, by the peak of one thread (a product of large matrices, same run). "
            "Then the time of the parts by that of the whole, each part's calls repeated alone in the same process and rounds: the products, and "
            "what of the peak they reach alone; passes that have a name; what is left is other passes, allocations and the calls themselves."
        ),
        table(
            ("base", "work", "GFLOP/s", "of peak", "products", "of peak, alone", "other parts", "not accounted for"),
            limits,
        ),
    ]


def engine_verdict(found: Results) -> str:
    pairs = dict.fromkeys((r["base"], r["work"]) for r in found["rows"])
    return "\n\n".join([listed([engine_judged(found, *pair) for pair in pairs]), engine_limit(found["limits"])])


def engine_judged(found: Results, base: str, work: str) -> str:
    """By the fastest variant of the minimal module; what the stock one takes is told as well."""
    rows = {r["engine"]: r for r in found["rows"] if (r["base"], r["work"]) == (base, work)}
    best = min((rows[name] for name in found["module"]), key=lambda r: r["numpy_faster"])
    value, target = best["numpy_faster"], found["targets"][work]
    told = (
        judged(f"{work} on {base} against the fastest minimal module ({best['engine']})", value, target, least=True, unit="×")
        + f" Over the rounds {span((best['lowest'], best['highest']), 'g')}×; eager, as torch comes: {rows['torch']['numpy_faster']:g}×."
    )  # fmt: skip
    if value >= target:
        return told
    (limit,) = (r for r in found["limits"] if (r["base"], r["work"]) == (base, work))
    return f"{told} Its time would have to fall by {1 - value / target:.0%}; {1 - limit['products']:.0%} of it are not products."


def engine_limit(limits: Sequence[Results]) -> str:
    products, unaccounted = [r["products"] for r in limits], [r["unaccounted"] for r in limits]
    parts = {name: [r["shares"].get(name, 0) for r in limits] for r in limits for name in r["shares"]}
    largest = max(parts, key=lambda name: max(parts[name]))
    return (
        f"What limits it next. The products take {span(products)} of the time, at {span(r['products_of_peak'] for r in limits)} of the peak; "
        f"with nothing else to do the engine would be {span((1 / share for share in products), '.1f')} times as fast. The rest is passes over small "
        f"arrays and the calls that start them: of the named parts, {largest} take the most ({span(parts[largest])}), and {span(unaccounted)} have no "
        "name here. Norm weights folded into the matrices, and rotary factors into the norms, would save passes, but change the last bits of all "
        "results, and with them every recorded run. A compiled kernel for a whole layer would need a compiler or binary wheels."
    )


# ---------------------------------------------------------------- a whole job


def job_tables(found: Results) -> list[str]:
    rows = [
        (f"`{r['base']}`", r["trainer"], r["cpu_s"], f"{r['faster']:g}", f"{r['lowest']:g} to {r['highest']:g}", r["process_cpu_s"], f"{r['process_faster']:g}", f"{r['as_used_faster']:g}", r["hidden"])
        for r in found["rows"]
    ]  # fmt: skip
    headings = (
        "base", "trainer", "training, CPU-s", "× ours", "lowest to highest round", "whole process, CPU-s", "× ours", "as used, × ours",
        "hidden accuracy after",
    )  # fmt: skip
    parts = [
        (f"`{r['base']}`", f"{r['sampling']:.0%}", f"{r['updates']:.0%}", f"{r['rest']:.0%}") for r in found["parts"]
    ]
    return [
        table(headings, rows),
        "Of the training here, in the same jobs:",
        table(("base", "sampling", "updates", "rewards, tokens, packing and bookkeeping"), parts),
    ]


def job_verdict(found: Results) -> str:
    theirs, target = [r for r in found["rows"] if r["trainer"] == "TRL"], found["target"]
    sentences = []
    for r in theirs:
        sentences += [
            judged(f"a whole process on {r['base']}", r["process_faster"], target, least=True, unit="×"),
            judged(f"the training alone on {r['base']}", r["faster"], target, least=True, unit="×"),
        ]
        if r["faster"] < target:
            (parts,) = (part for part in found["parts"] if part["base"] == r["base"])
            sentences[-1] += f" {job_missing(parts, r['faster'], target)}"
    return listed(sentences)


def job_missing(parts: Results, faster: float, target: float) -> str:
    """Why the training alone is not fast enough, and what would be needed."""
    engine = parts["sampling"] + parts["updates"]
    needed = faster / target - parts["rest"]
    return (
        f"Sampling and updates are {engine:.0%} of it: with nothing else it would be {faster / engine:.3g}×. {target:g}× would need an engine "
        f"that takes {1 - needed / engine:.0%} less time for them."
    )


# ---------------------------------------------------------------- the rest


def probe_tables(found: Results) -> list[str]:
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


def probe_verdict(found: Results) -> str:
    met = listed(
        [
            judged(f"{r['dialect']} dialect, median", r["cpu_s"], r["target_s"], least=False, unit=" CPU-s")
            for r in found["rows"]
        ]
    )
    return f"{met}\n\n{probe_limit(found)}"


def probe_limit(found: Results) -> str:
    told, cores, most = [], found["settings"]["cores"], found["settings"]["at_once"]
    for r in found["rows"]:
        parts = sorted(r["parts_s"].items(), key=lambda part: -part[1])
        told.append(", ".join(f"the {name} {part / sum(r['parts_s'].values()):.0%}" for name, part in parts))
    shares = "; ".join(f"{r['dialect']}: {share}" for r, share in zip(found["rows"], told, strict=True))
    busy = " and ".join(f"{r['busy_at_once']:.2g} ({r['dialect']})" for r in found["rows"])
    full = all(r["busy_at_once"] >= 0.9 * cores for r in found["rows"])
    bound = "the cores bound them" if full else "it is not the cores alone that bound them"
    return f"What limits it next, by shares of the CPU-seconds. {shares}. {most} at once keep {busy} of {cores} cores busy: {bound}."


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


def outer_tables(found: Results) -> list[str]:
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


def outer_limit(found: Results) -> str:
    row, cores = found["median"], found["settings"]["cores"]
    idle_s, own_s = row["wall_s"] * (1 - row["busy_cores"] / cores), row["controller_s"] / cores
    work_s = row["wall_s"] - idle_s - own_s
    least = (work_s + idle_s) / work_s
    return (
        f"What limits it next. Of {row['wall_s']:.0f} s, {work_s:.0f} s are the work itself on {cores} cores, {own_s:.0f} s the controller's own, and in "
        f"{idle_s:.0f} s a core has nothing to do: groups are trained in order, the agent's update and its next answers come before new jobs, and a "
        "validation ends with its last job (how much each of these waits takes was not measured apart). Without any of the controller's own work "
        f"{least:.2f} would be left, so less of it helps little; jobs of later steps would have to fill the waits. Of the controller's own, the report is "
        f"{row['report_s'] / row['controller_s']:.0%} and writing episodes {row['writing_s'] / row['controller_s']:.0%}."
    )


def outer_verdict(found: Results) -> str:
    row = found["median"]
    return listed(
        [
            judged("wall-clock by work", row["wall_over_work"], found["targets"]["wall"], least=False),
            judged("the controller besides, an episode", row["controller_s_per_episode"], found["targets"]["controller_s"], least=False, unit=" CPU-s"),
        ]
    )  # fmt: skip


def queue_tables(found: Results) -> list[str]:
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


def queue_verdict(found: Results) -> str:
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


def transfer_tables(found: Results) -> list[str]:
    rows = [(r["what"], r["wall_s"], r["sent_mb"], r["received_mb"], r["connections"]) for r in found["rows"]]
    return [table(("what", "wall-clock s", "MB sent", "MB back", "new connections"), rows)]


def transfer_verdict(found: Results) -> str:
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


def scoring_tables(found: Results) -> list[str]:
    rows = [(r["scorer"], r["items_per_s"], f"{r['slower']:g}") for r in found["rows"]]
    job, vllm = found["job"], found["vllm"]
    faster = " and ".join(
        f"{n} at once was {times:.3g} times as fast" for n, times in vllm["faster"].items() if times > 1
    )
    than = f"the scorer's own choice, {vllm['own']}, which is a setting of the engine (`max_num_seqs`) and not fitted to the machine"
    compared = f"On this machine {faster} as {than}." if faster else f"No other number at once was faster than {than}."
    return [
        table(("scorer", "items a second", "time by that of nano"), rows),
        f"{compared} vLLM's first score, with the start of its server, took {vllm['first_s']} s.",
        (
            f"A nano job of 25 steps trains for {job['training_s']} s and is scored in {job['scoring_s']} s: scoring is {job['share']:.0%} of "
            "the two."
        ),
    ]


FLAT = 1.25
"""What a job takes with the most machines by what it takes with the fewest: up to here it is called flat."""


def schedule_tables(found: Results) -> list[str]:
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
        _schedule_setting("Jobs alone", found["makespan"]),
        table(
            ("steps off-policy", "wall-clock by the lower bound", "lowest to highest seed", "mean staleness"), makespan
        ),
        _schedule_setting("Three ways with stale work, on the same draws", found["compared"]),
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


def _schedule_setting(what: str, part: Results) -> str:
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


def schedule_verdict(found: Results) -> str:
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


BENCH = ".venvs/bench/bin/python benchmarks"

SECTIONS: Sequence[Section] = (
    Section(
        source="engine",
        title="The numpy engine",
        command=f"{BENCH}/engine.py",
        what=(
            "Sampling (16 prompts × 8 samples, at most 16 tokens, the same draws in all engines) and one GRPO update on these samples, against "
            "torch with the same weights: a minimal module with the engine's own scheme (a prompt is read once for its samples, a cache "
            "written in place, finished rows leave the batch), the same compiled, and transformers' Qwen3 with its own cache and a loop by hand that "
            "does the same. One thread each, a process each. “Freed memory kept” is the minimal module with this package's settings of the "
            "allocator. Before anything is timed, all engines must give the same samples (over 98 %) and gradients (to a thousandth)."
        ),
        tables=engine_tables,
        verdict=engine_verdict,
    ),
    Section(
        source="job",
        title="A whole job, beside TRL",
        command=f"{BENCH}/job.py",
        what=(
            "One GRPO job of 25 steps on the same base, rows, reward and settings, here and in TRL's GRPOTrainer, one thread each: the training "
            "alone in a warm process, a process that does one job from nothing to weights, and each as it is used (jobs here go to a process "
            "that is warm; TRL is started for a job). The hidden accuracy afterwards says that both did the work."
        ),
        tables=job_tables,
        verdict=job_verdict,
    ),
    Section(
        source="probe",
        title="Probes",
        command=".venvs/verifiers/bin/python benchmarks/probe.py",
        what=(
            "An environment.py looked at in a fork of a warm, confined process. CPU-seconds are those of all threads of the controller (its own "
            "checks: which family does each row belong to, is each reply of the right kind), the warm process, and the fork that runs the job's "
            "code (for a taskset also verifiers' own scoring) together."
        ),
        tables=probe_tables,
        verdict=probe_verdict,
    ),
    Section(
        source="outer",
        title="What the outer loop adds",
        command="python benchmarks/outer.py",
        what=(
            "A whole pilot: wall-clock against the CPU-seconds of what it is for (jobs, scoring, probes, the agent's sampling and updates, "
            "grading), and the CPU-seconds of the controller besides, the report among them."
        ),
        tables=outer_tables,
        verdict=outer_verdict,
        limit=outer_limit,
    ),
    Section(
        source="queue_rates",
        title="The job queue",
        command=f"{BENCH}/queue_rates.py",
        what=(
            "Jobs of 1 KB put, leased and finished by 1, 4 and 16 processes on one file, beside two well-known queues on SQLite. They do not "
            "promise the same. What was put and what was finished here is on the disk when the call returns (“not synced” is without that wait); "
            "persist-queue waits for the disk with its leases too, litequeue never does, so each is compared with ours that waits, or does not, "
            "as it does. Besides, a lease that runs out is handed on here, and a job has one key and one result. persist-queue keeps its items "
            "in hand in memory, so it is asked by one process only."
        ),
        tables=queue_tables,
        verdict=queue_verdict,
    ),
    Section(
        source="schedule",
        title="The schedule",
        command="python benchmarks/schedule.py",
        what=(
            "The real loop, workers, queue in memory and pool on simulated machines and a clock that jumps. First jobs alone: a job's time is "
            "log-normal (σ = 0.5), every twentieth takes four times as long, and nothing else takes time. The lower bound is all work by the "
            "machines. Then simulated pods, with boots, refusals and losses, two steps off-policy; the controller's CPU and memory are those of "
            "the whole program, the simulated provider's share included, without what loading it takes."
        ),
        tables=schedule_tables,
        verdict=schedule_verdict,
    ),
    Section(
        source="transfer",
        title="Machines behind SSH",
        command=f"{BENCH}/transfer.py",
        what=(
            "A real sshd on loopback, behind a relay that counts connections and bytes, in a process of its own. Wall-clock from asking for a lease "
            "to the end of the first training step of a nano job, 5 MB put there before it: on a host that was never seen, on the next lease, and "
            "with the same data again. The job does not read the 5 MB, since the data of a nano job is bounded to a twentieth of that. Then an "
            "adapter of 50 MB, beside scp."
        ),
        tables=transfer_tables,
        verdict=transfer_verdict,
    ),
    Section(
        source="scoring",
        title="Scoring",
        command=".venvs/vllm/bin/python benchmarks/scoring.py",
        what=(
            "256 hidden items of one base on a warm machine, prompts there, completions back, graded, in wall-clock: the nano scorer, and "
            "vLLM on the CPU with as many requests at once as its scorer chooses, and with others."
        ),
        tables=scoring_tables,
        limit=(
            "What limits it next was not measured apart: vLLM is asked over HTTP, a request a prompt, and is made for models a thousand times "
            "larger, but how its time divides between its engine and the requests is not told here."
        ),
    ),
)
