"""A whole job, beside TRL: of docs/performance.md."""

from __future__ import annotations

from pages.section import Results, Section, judged, listed, table


def tables(found: Results) -> list[str]:
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


def verdict(found: Results) -> str:
    theirs, target = [r for r in found["rows"] if r["trainer"] == "TRL"], found["target"]
    sentences = []
    for r in theirs:
        sentences += [
            judged(f"a whole process on {r['base']}", r["process_faster"], target, least=True, unit="×"),
            judged(f"the training alone on {r['base']}", r["faster"], target, least=True, unit="×"),
        ]
        if r["faster"] < target:
            (parts,) = (part for part in found["parts"] if part["base"] == r["base"])
            sentences[-1] += f" {_missing(parts, r['faster'], target)}"
    return listed(sentences)


def _missing(parts: Results, faster: float, target: float) -> str:
    """Why the training alone is not fast enough, and what would be needed."""
    engine = parts["sampling"] + parts["updates"]
    needed = faster / target - parts["rest"]
    return (
        f"Sampling and updates are {engine:.0%} of it: with nothing else it would be {faster / engine:.3g}×. {target:g}× would need an engine "
        f"that takes {1 - needed / engine:.0%} less time for them."
    )


SECTION = Section(
    source="job",
    title="A whole job, beside TRL",
    command=".venvs/bench/bin/python benchmarks/job.py",
    what=(
        "One GRPO job of 25 steps on the same base, rows, reward and settings, here and in TRL's GRPOTrainer, one thread each: the training "
        "alone in a warm process, a process that does one job from nothing to weights, and each as it is used (jobs here go to a process "
        "that is warm; TRL is started for a job). The hidden accuracy afterwards says that both did the work."
    ),
    tables=tables,
    verdict=verdict,
)
