"""The example jobs, and what they become on machines of four kinds. Run as a program, it writes the golden files anew."""

from __future__ import annotations

import itertools
from pathlib import Path

from attrs import evolve

from nested_rl.inner.prime_rl import job
from nested_rl.inner.prime_rl.keys.render import render
from nested_rl.inner.prime_rl.memory import SHAPES, place
from nested_rl.inner.prime_rl.order import Package
from nested_rl.inner.prime_rl.taskset import HARNESS, dialect
from nested_rl.jobs.folder import JobConfig, parse
from nested_rl.types import Need

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"
GOLDEN = ROOT / "tests" / "golden" / "prime_rl"
SURFACE = job.surface(tuple(SHAPES))
GIB = {24: 24_564 / 1024, 48: 46_068 / 1024}
"""What nvidia-smi tells of an RTX A5000 or 4090, and of an A40 or L40S: the smallest cards that are sold as 24 and 48 GB."""
EXAMPLES = tuple(sorted(path.parent.name for path in JOBS.glob("*/job.toml")))
CASES = tuple(itertools.product(EXAMPLES, (1, 2), GIB, SHAPES, ("lora", "full")))


def files(example: str) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in (JOBS / example).iterdir() if path.is_file()}


def config(example: str, base: str | None = None, kind: str | None = None) -> JobConfig:
    """What its job.toml says, for another base or another way to train."""
    found, problems = parse(files(example), SURFACE)
    assert found is not None, problems
    training = dict(found["training"])
    if kind is not None:
        training["lora_rank"] = (training["lora_rank"] or 16) if kind == "lora" else 0
    return evolve(found, base=base or found.base, tables={**found.tables, "training": training})


def name(example: str, gpus: int, gb: int, base: str, kind: str) -> str:
    return f"{example}.{gpus}x{gb}.{base.removeprefix('Qwen/Qwen3-')}.{kind}"


def rendered(example: str, gpus: int, gb: int, base: str, kind: str) -> tuple[str, str]:
    """The ending of the golden file and its text: the TOML, or why the machine is refused."""
    said = config(example, base, kind)
    shape = SHAPES[base]
    placement = place(shape, job.kind(said), said["training"]["seq_len"], [GIB[gb]] * gpus)
    if placement is None:
        (refusal,) = job.memory_problems(said, shape, [Need(gpus=gpus, gpu_memory_gib=round(GIB[gb], 1), disk_gib=100)])
        return "txt", f"{refusal.code}: {refusal.message}; {refusal.hint}\n"
    package = Package(taskset="job-example", dialect=dialect(files(example)), files={})
    path = f"/bases/{base.rpartition('/')[2]}"
    return "toml", render(said, package, placement, base_path=path, harness=HARNESS, seed=7)


def main() -> None:
    for old in GOLDEN.glob("*.*"):
        if old.suffix in (".toml", ".txt"):
            old.unlink()
    for case in CASES:
        ending, text = rendered(*case)
        (GOLDEN / f"{name(*case)}.{ending}").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
