"""Scoring: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, table


def tables(found: Results) -> list[str]:
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


SECTION = Section(
    source="scoring",
    title="Scoring",
    command=".venvs/vllm/bin/python benchmarks/scoring.py",
    what=(
        "256 hidden items of one base on a warm machine, prompts there, completions back, graded, in wall-clock: the nano scorer, and "
        "vLLM on the CPU with as many requests at once as its scorer chooses, and with others."
    ),
    tables=tables,
    limit=(
        "What limits it next was not measured apart: vLLM is asked over HTTP, a request a prompt, and is made for models a thousand times "
        "larger, but how its time divides between its engine and the requests is not told here."
    ),
)
