"""`models build`: make the shipped nano models again, from the task families and a seed."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from cyclopts import App

from nested_rl.errors import UnknownName

app = App(name="models", help="The shipped nano models.")

AGENT = "nano-agent"


@app.command
def build(*, only: str | None = None, out: Path | None = None, seed: int = 0) -> None:
    """Pre-train the two bases and the agent again, on this computer's CPU, in a few minutes.

    The same seed gives the same models. What the bases score untrained is measured and recorded beside them. The agent is
    taught with the validation that its jobs will meet, which needs the bases, so it comes last.

    Args:
        only: Make only nano-s, nano-m or nano-agent.
        out: Folder for the models, instead of the package's own.
        seed: Seed of everything random.
    """
    from nested_rl.pretrain import baselines, bases

    known = (*bases.RECIPES, AGENT)
    if only is not None and only not in known:
        raise UnknownName("nano model", only, known)
    place = out or _shipped()
    for name in known if only is None else (only,):
        started_s = time.monotonic()
        print(f"{name}:", flush=True)
        if name == AGENT:
            _build_agent(place / name, seed)
        else:
            bases.build(name, place / name, seed=seed, log=_log)
        print(f"  written to {place / name} after {time.monotonic() - started_s:.0f} s", flush=True)
        if name != AGENT and all((place / base / "config.json").is_file() for base in bases.RECIPES):
            print("  measuring what the bases score untrained", flush=True)
            baselines.record(place, tuple(bases.RECIPES))


def _build_agent(folder: Path, seed: int) -> None:
    from nested_rl.inner.nano import NanoInnerTrainer
    from nested_rl.pretrain import agent, corpus

    inner = NanoInnerTrainer()
    try:
        agent.build(folder, corpus.Verdicts(inner), seed=seed, log=_log)
    finally:
        asyncio.run(inner.close())


def _shipped() -> Path:
    from nested_rl import nano

    assert nano.__file__ is not None
    return Path(nano.__file__).parent / "weights"


def _log(line: str) -> None:
    print(f"  {line}", flush=True)
