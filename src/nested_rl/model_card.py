"""The model card of a trained agent: what was measured, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from nested_rl.errors import SettingsError
from nested_rl.evaluation import EvalReport
from nested_rl.export import TOOL_HARNESS
from nested_rl.rundir import RunDir
from nested_rl.types import JSON

NANO: Final = "nested_rl.trainers.nano.NanoTrainer"
"""The trainer of a run that names none."""

_OF_RUN: Final = re.compile(r".*@(best|initial|\d+)", re.DOTALL)
"""Labels of the run's own versions. Agents of another making are evaluated there too, as version 0."""

_CARD: Final = """\
---
base_model: {base}
library_name: peft
pipeline_tag: text-generation
tags:
- lora
- reinforcement-learning
- tool-use
- nested-rl
---
# {name}: an agent that writes training jobs

A LoRA adapter for `{base}`, trained by reinforcement learning in nested loops: the agent writes a training job for a small
model, the job is run, and what the small model then scores on a hidden evaluation is the agent's reward.

| | |
| --- | --- |
| base | `{base}` |
| adapter | rank {rank}, alpha {alpha} |
| version | {version} of {steps} updates done |
| trainer | {trainer} |
| trained on | {tasks} |
| groups | {groups_per_step} a step, {group_size} episodes each, sampled at most {off_policy} versions behind |
| seed | {seed} |
| harness | {harness}, nested_rl {nested_rl} |

## Evaluation

{evaluation}

## Cost

{cost}

## Use

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "{name}")
```

The agent works through the tools of nested_rl's harness; without them it has nothing to call. No licence is stated: choose one
before you publish this, and mind the base's.
"""


def card(run: RunDir, version: int, base: str) -> str:
    """The model card of one version, from what the run recorded."""
    spec = run.spec
    trainer = trainer_of(run)
    harness = spec.get("parts", {}).get("harness", {}).get("name", TOOL_HARNESS)
    rank = trainer.get("lora_rank") or trainer.get("rank") or "unknown"
    return _CARD.format(
        base=base,
        name=run.path.resolve().name,
        rank=rank,
        alpha=2 * rank if trainer.get("lora_rank") else "as in adapter_config.json",
        version=version,
        steps=len(run.metrics()),
        trainer=_settings(trainer),
        tasks=", ".join(spec.get("tasks", ())) or "unknown",
        groups_per_step=spec.get("groups_per_step", "unknown"),
        group_size=spec.get("group_size", "unknown"),
        off_policy=spec.get("max_steps_off_policy", "unknown"),
        seed=spec.get("seed", "unknown"),
        harness=str(harness).rpartition(".")[2],
        nested_rl=spec.get("nested_rl", "of an unknown version"),
        evaluation="\n".join(_evaluation(run, version)),
        cost=_cost(run),
    )


def _settings(trainer: Mapping[str, JSON]) -> str:
    """The trainer's name and its settings, without places on this computer or a network."""
    told = {k: v for k, v in trainer.items() if k not in ("name", "model", "base_url", "key_env") and v is not None}
    name = str(trainer.get("name", NANO)).rpartition(".")[2]
    return name + (f" ({', '.join(f'{k} {v}' for k, v in told.items())})" if told else "")


def _evaluation(run: RunDir, version: int) -> Iterator[str]:
    """A table of the run's evaluations on test tasks: this version and the untrained agent."""
    found = [EvalReport.from_json({"conditions": "", **data}) for data in run.evals().values()]
    reports = [report for report in found if _OF_RUN.fullmatch(report.policy)]
    mine = [r for r in reports if r.split == "test" and r.version == version and r.rows]
    if not mine:
        using = " --using FILE.toml" if run.spec.get("parts") else ""
        asked = f"nested-rl evaluate RUN --policy {version}{using}"
        yield f"None: no evaluation of version {version} on test tasks was made (`{asked}`)."
        return
    start = [r for r in reports if r.split == "test" and r.version == 0 and r.rows]
    trained_on = set(run.spec.get("tasks", ()))
    yield "Mean reward on test tasks, with 95 % bootstrap intervals over tasks; the difference is paired, task by task."
    yield ""
    yield "| family | held out | tasks | reward | untrained agent | difference | jobs that were valid |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for report in mine:
        family = ", ".join(dict.fromkeys(row.family for row in report.rows))
        held_out = "no" if trained_on & {row.family for row in report.rows} else "yes"
        before, difference = _against(report, start)
        yield (
            f"| {family} | {held_out} | {_counted(report)} | {_range(report)} | {before} | {difference} | "
            f"{report.valid:.0%} |"
        )


def _against(report: EvalReport, start: list[EvalReport]) -> tuple[str, str]:
    """The untrained agent's reward, and the paired difference to it, where both were evaluated on the same tasks."""
    for other in start:
        try:
            return _range(other), str(report.compare(other).reward)
        except SettingsError:
            continue
    return "not evaluated", "unknown"


def _counted(report: EvalReport) -> str:
    """How many tasks count."""
    return f"{len(report.rows)}{f' ({report.masked} more masked)' if report.masked else ''}"


def _range(report: EvalReport) -> str:
    found = report.interval
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _cost(run: RunDir) -> str:
    """The ledger by kind; for a model behind an API also its tokens."""
    kinds: dict[str, float] = {}
    for row in run.costs():
        kinds[str(row["kind"])] = kinds.get(str(row["kind"]), 0.0) + float(row["usd"])
    by_kind = ", ".join(f"{kind} ${usd:.2f}" for kind, usd in sorted(kinds.items()))
    told = f"The run's ledger has ${sum(kinds.values()):.2f} in all" + (f" ({by_kind})." if kinds else ".")
    last: Mapping[str, float] = next((r for r in reversed(run.metrics()) if "update/prices_known" in r), {})
    if last:
        used = ", ".join(f"{kind} {last[f'update/used_{kind}_tokens']:,.0f}" for kind in ("prefill", "sample", "train"))
        told += f" Tokens of the agent since the run was last started: {used}."
        if not last["update/prices_known"]:
            told += " No prices were given for them: their cost is not in the ledger."
    return told


def trainer_of(run: RunDir) -> Mapping[str, JSON]:
    """The trainer's name and settings, as the run recorded them; empty for the local one."""
    found: Mapping[str, JSON] = run.spec.get("parts", {}).get("trainer", {})
    return found
