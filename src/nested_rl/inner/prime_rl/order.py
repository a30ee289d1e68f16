"""What passes between the parts of the full-scale trainer: a packaged environment, the order to a machine, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from attrs import field, frozen

Dialect: TypeAlias = Literal["plain", "native"]

RUN_FOLDER: Final = "outputs/job"
"""Where prime-rl writes everything, below its working directory: the TOML's `output_dir` and `run.name`."""


@frozen(kw_only=True)
class Package:
    """A job's environment as an installable verifiers package.

    `taskset` is the id that prime-rl loads it by, `files` its text by path inside the package's folder.
    """

    taskset: str
    dialect: Dialect
    files: Mapping[str, str] = field(repr=False)


@frozen(kw_only=True)
class Order:
    """One training run for a machine.

    `config` is the text of prime-rl's TOML, `env` the environment package, `argv` the command that reads the TOML from its
    working directory, `steps` how many it must make, `base_path` the base's folder on the machine. `gpus` are device ids as
    CUDA_VISIBLE_DEVICES takes them. `limits` of the watchdog are seconds: `start_s` until the first metrics row, `stall_s`
    between two, `deadline_s` for everything.
    """

    config: str = field(repr=False)
    env: Package
    base: str
    base_path: str
    kind: Literal["full", "lora"]
    steps: int
    digest: str
    gpus: str = "0,1"
    argv: tuple[str, ...] = ("rl", "@", "job.toml")
    deadline_s: float = 3600.0
    start_s: float = 900.0
    stall_s: float = 600.0


@frozen(kw_only=True)
class Ended:
    """A training run that made a checkpoint. `path` is a folder on the machine that vLLM can load.

    `curve` is the mean training reward by step, `stop` is "done" or why the watchdog ended it early with weights to score.
    """

    path: str
    digest: str
    seconds: float
    curve: tuple[float, ...] = field(default=(), repr=False)
    log: str = field(default="", repr=False)
    stop: str = "done"
    peak_memory_gib: float | None = None
