"""job.toml as the one TOML that prime-rl reads, for the machine at hand."""

from __future__ import annotations

from typing import Any, Final

import tomli_w

from nested_rl.inner.prime_rl.keys.allowed import KINDS
from nested_rl.inner.prime_rl.keys.reading import NAME, flat
from nested_rl.inner.prime_rl.memory import Placement
from nested_rl.inner.prime_rl.order import RUN_FOLDER, Package
from nested_rl.jobs.folder import JobConfig

HOST: Final = "127.0.0.1"
INFLIGHT: Final = 64
"""Rollouts under way at once; several hundred lose connections."""
ROLLOUT_S: Final = 240
SCORING_S: Final = 60
_ROWS: Final = (256, 4096)
"""A plain environment gives as many rows as a run can use, between these."""


def render(
    config: JobConfig, package: Package, placement: Placement, *, base_path: str, harness: str, seed: int = 0
) -> str:
    """The TOML. `base_path` is the base's folder on the machine, `harness` the id of what runs the package's rollouts."""
    tree = _tree(config, package, placement, base_path=base_path, harness=harness, seed=seed)
    for path, value in _settings(config).items():
        _set(tree, path, value)
    tree["orchestrator"]["train"]["source"] = [tree["orchestrator"]["train"]["source"]]
    return tomli_w.dumps(tree)


def _tree(
    config: JobConfig, package: Package, placement: Placement, *, base_path: str, harness: str, seed: int
) -> dict[str, Any]:
    training, rollout = config["training"], config["rollout"]
    folder, _, name = RUN_FOLDER.rpartition("/")
    server: dict[str, Any] = {
        "max_model_len": training["seq_len"],
        "gpu_memory_utilization": placement.utilization,
        "seed": seed % 2**31,
    }
    if placement.cache_bytes is not None:
        server["kv_cache_memory_bytes"] = placement.cache_bytes
    trainer: dict[str, Any] = {"optim": {"type": "adamw", "lr": float(training["learning_rate"])}}
    if training["lora_rank"]:
        trainer["model"] = {"lora": {"rank": training["lora_rank"]}}
    return {
        "max_steps": training["steps"],
        "seq_len": training["seq_len"],
        "output_dir": folder,
        "run": {"name": name},
        "model": {"name": base_path},
        "deployment": {"gpus_per_node": 2, "num_train_gpus": 1, "num_infer_gpus": 1},
        "weight_broadcast": {"type": "filesystem"},
        "trainer": trainer,
        "orchestrator": {
            "batch_size": training["batch_size"],
            "group_size": training["group_size"],
            "renderer": {"name": "qwen3", "enable_thinking": False},
            "model": {"client": {"base_url": f"http://{HOST}:8000/v1"}},
            "concurrency": {"max_inflight": INFLIGHT},
            "train": {
                "sampling": {
                    "temperature": float(rollout["temperature"]),
                    "max_completion_tokens": rollout["max_tokens"],
                },
                "source": _source(config, package, harness, seed),
            },
        },
        "inference": {"server": {"host": HOST, "port": 8000}, "vllm": server},
    }


def _source(config: JobConfig, package: Package, harness: str, seed: int) -> dict[str, Any]:
    taskset: dict[str, Any] = {"id": package.taskset}
    if package.dialect == "plain":
        training = config["training"]
        prompts = training["steps"] * training["batch_size"] // training["group_size"]
        taskset |= {"rows": min(max(prompts, _ROWS[0]), _ROWS[1]), "seed": seed % 2**31}
    return {
        "name": "job",
        "env": {
            "taskset": taskset,
            "agent": {
                "max_turns": config["rollout"]["max_turns"],
                "harness": {"id": harness},
                "runtime": {"type": "subprocess"},
                "timeout": {"rollout": ROLLOUT_S, "scoring": SCORING_S},
            },
        },
    }


def _settings(config: JobConfig) -> dict[str, Any]:
    """What [prime_rl] says, every type spelt out, with phases of the schedule that fit the number of steps."""
    given, steps = flat(config[NAME]), config["training"]["steps"]
    given = {path: value for path, value in given.items() if value != {}}
    for table, kinds in KINDS.items():
        if any(path.startswith(f"{table}.") for path in given):
            given.setdefault(f"{table}.type", next(iter(kinds)))
    schedule = "trainer.scheduler"
    if given.get(f"{schedule}.type") in ("linear", "cosine"):
        left = max(0, steps - given.get(f"{schedule}.decay_steps", 0))
        warmup = given.setdefault(f"{schedule}.warmup_steps", min(10, max(1, steps // 10), left))
        if given[f"{schedule}.type"] == "linear":
            given.setdefault(f"{schedule}.decay_steps", max(0, min(10, steps - warmup)))
    penalty = "orchestrator.algo.length_penalty."
    if any(path.startswith(penalty) for path in given):
        given[f"{penalty}type"] = "linear"
    group = config["training"]["group_size"]
    given.setdefault("orchestrator.concurrency.max_inflight", max(INFLIGHT, group))
    return given


def _set(tree: dict[str, Any], path: str, value: object) -> None:
    *tables, name = path.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
    tree[name] = value
