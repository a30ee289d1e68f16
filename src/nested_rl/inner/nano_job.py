"""The training program of a machine: warm, trusted, one job at a time.

Started as a resident, `python -m nested_rl.inner.nano_job`; see `nested_rl.nano.lines` for the protocol. The job's environment.py
runs in a sandbox of its own and is dead before a checkpoint is written; nothing it says decides whose fault an end was.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nested_rl import tasks
from nested_rl.errors import AgentFault
from nested_rl.inner.nano_grpo import Account, Grpo, Recipe
from nested_rl.interfaces import TaskFamily
from nested_rl.jobs.confine import WEAK
from nested_rl.jobs.sandbox import Limits, SandboxUnavailable, Zygote
from nested_rl.nano.folder import load_model, save_model, weights_path
from nested_rl.nano.lines import Lines
from nested_rl.nano.model import Qwen3
from nested_rl.nano.serve import WEIGHTS
from nested_rl.nano.threads import single_thread
from nested_rl.nano.tokenizer import Tokenizer

LIMITS = Limits(cpu_s=20, call_s=20.0)
"""Of a job's environment.py over a whole training; a good one uses a few hundredths of a second."""
_LOG_CHARS = 16_000


class Shop:
    """Bases, families and the sandbox's zygote, kept warm from job to job."""

    def __init__(self) -> None:
        self.zygote = Zygote()

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """`base`, `files`, `recipe`, `seed`, `work_limit`, `families` (folders of further ones), `out` (a new folder).

        With `walls` a sandbox of nothing but resource limits will not do. Gives `digest` (of the weights), `work`, `curve`, `log`, or `fault`, when the end was the job's own doing.
        """
        try:
            return self._train(question)
        except AgentFault as fault:
            return {"fault": str(fault)}

    def _train(self, question: Mapping[str, Any]) -> dict[str, Any]:
        base, tokenizer = _base(question["base"])
        model = base.copy()
        families = tasks.load(scale="nano") + _further(tuple(question["families"]))
        zygote = self._sandbox(question["families"])
        if question.get("walls") and zygote.level in WEAK:
            raise SandboxUnavailable("agent-written code is not run: this machine has only resource limits around it")
        with zygote.spawn(question["files"], LIMITS) as environment:
            training = Grpo(
                model,
                tokenizer,
                Recipe(**question["recipe"]),
                environment,
                seed=question["seed"],
                work_limit=question["work_limit"],
                held_out=tasks.held_out(families),
            )
            account = training.run()
        log = _log(account, environment.log)
        digest = write(Path(question["out"]), model, tokenizer, question["base"])
        return {"digest": digest, "work": account.work, "curve": account.curve, "log": log}

    def _sandbox(self, folders: Sequence[str]) -> Zygote:
        """The zygote, which knows exactly these families besides the built-in ones; another one if it did not."""
        families = tuple(map(Path, folders))
        if self.zygote.families != families:
            self.close()
            self.zygote = Zygote(families=families)
        return self.zygote

    def close(self) -> None:
        """End the sandbox."""
        self.zygote.close()


def write(out: Path, model: Qwen3, tokenizer: Tokenizer, base: str) -> str:
    """Write the checkpoint, the whole folder at once, in float32; the sha256 of its weights."""
    template = weights_path(base) / "chat_template.jinja"
    part = out.with_name(f".{out.name}.part")
    for stale in (part, out):
        shutil.rmtree(stale, ignore_errors=True)
    text = template.read_text("utf-8") if template.is_file() else ""
    save_model(part, model, tokenizer, "float32", chat_template=text)
    part.replace(out)
    return hashlib.sha256((out / WEIGHTS).read_bytes()).hexdigest()


@cache
def _base(name: str) -> tuple[Qwen3, Tokenizer]:
    return load_model(weights_path(name))


@cache
def _further(folders: tuple[str, ...]) -> tuple[TaskFamily, ...]:
    return tasks.load(*map(Path, folders), scale="nano") if folders else ()


def _log(account: Account, printed: str) -> str:
    counts = f"{account.rows} rows asked, {account.held_out} of them held out, {account.silent_groups} groups without a difference"
    said = ["environment.py printed:", printed] if printed else []
    return "\n".join([*account.log, counts, *said])[:_LOG_CHARS]


def main() -> None:
    """Serve until the input ends."""
    lines = Lines.claim()
    shop = Shop()
    with single_thread(), contextlib.closing(shop):
        lines.serve(shop.answer)


if __name__ == "__main__":
    main()
