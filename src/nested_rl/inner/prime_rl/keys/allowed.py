"""What a job may set, and within which limits. Paths are dotted, as in prime-rl's documentation; `*` is a name of the author's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from attrs import frozen

from nested_rl.jobs.surface import Key


@frozen(kw_only=True)
class Several:
    """A list of different names out of `choices`."""

    choices: tuple[str, ...]
    default: tuple[str, ...]
    hint: str = ""

    def accepts(self, value: object) -> bool:
        """At least one, none twice."""
        names = value if isinstance(value, list) else []
        return bool(names) and all(n in self.choices for n in names) and len(names) == len(set(map(str, names)))

    @property
    def wants(self) -> str:
        """What it accepts, in words."""
        return f"a list of names out of {', '.join(self.choices)}"


Rule: TypeAlias = Key | Several

# ---------------------------------------------------------------- the plain tables of job.toml

TABLES: Final[Mapping[str, Mapping[str, Key]]] = {
    "training": {
        "steps": Key(type=int, low=2, high=200),
        "learning_rate": Key(type=float, low=1e-8, high=1e-2, hint="try 5e-5 for an adapter, 2e-6 for all weights"),
        "batch_size": Key(type=int, low=16, high=512, default=128),
        "group_size": Key(type=int, low=2, high=64, default=8, hint="advantages are taken within a group: use 8 or 16"),
        "lora_rank": Key(type=int, low=0, high=128, default=16),
        "seq_len": Key(type=int, low=256, high=8192, default=2048),
    },
    "rollout": {
        "max_tokens": Key(type=int, low=16, high=4096, default=512),
        "temperature": Key(type=float, low=0.1, high=2.0, default=1.0),
        "max_turns": Key(type=int, low=1, high=8, default=1),
    },
}
"""The keys of job.toml, besides [model] base and the optional table [prime_rl]."""

MEANING: Final[Mapping[str, str]] = {
    "steps": "optimiser steps, each on a fresh batch",
    "learning_rate": "peak; an adapter takes about ten times that of all weights",
    "batch_size": "completions a step; a multiple of group_size",
    "group_size": "completions of one prompt; a reward counts against its group's mean",
    "lora_rank": "of the adapter that is trained; 0 trains all weights",
    "seq_len": "tokens of prompt and completion together; longer ones are cut",
    "max_tokens": "of one completion",
    "temperature": "of sampling in training; the evaluation is greedy",
    "max_turns": "of one conversation; more than 1 only with a taskset of your own",
}

# ---------------------------------------------------------------- [prime_rl]: what may be set

_OPTIMIZER: Final[Mapping[str, Rule]] = {
    "weight_decay": Key(type=float, low=0, high=1, default=0.01),
    "max_norm": Key(type=float, low=1e-3, high=100, default=1.0),
}
_TAU: Final[Mapping[str, Rule]] = {
    "adv_tau": Key(type=float, low=0, high=100, default=1.0),
    "kl_tau": Key(type=float, low=0, high=10, default=1e-3),
}
_WEIGHT = Key(type=float, low=0, high=10, default=0.1)

KINDS: Final[Mapping[str, Mapping[str, Mapping[str, Rule]]]] = {
    "trainer.optim": {
        "adamw": {
            **_OPTIMIZER,
            "betas1": Key(type=float, low=0, high=0.9999, default=0.9),
            "betas2": Key(type=float, low=0, high=0.99999, default=0.999),
        },
        "sgd": {
            **_OPTIMIZER,
            "momentum": Key(type=float, low=0, high=0.9999, default=0.9),
            "nesterov": Key(type=bool, default=True),
        },
        "muon": {
            **_OPTIMIZER,
            "mu": Key(type=float, low=0, high=0.9999, default=0.95),
            "betas1": Key(type=float, low=0, high=0.9999, default=0.9),
            "betas2": Key(type=float, low=0, high=0.99999, default=0.95),
        },
        "sign_sgd": _OPTIMIZER,
    },
    "trainer.scheduler": {
        "constant": {},
        "linear": {
            "warmup_steps": Key(type=int, low=0, high=200, default=10),
            "decay_steps": Key(type=int, low=0, high=200, default=10),
            "min_lr": Key(type=float, low=0, high=1e-2, default=0.0),
        },
        "cosine": {
            "warmup_steps": Key(type=int, low=0, high=200, default=10),
            "min_lr": Key(type=float, low=0, high=1e-2, default=0.0),
        },
    },
    "trainer.loss": {
        "default": {
            "dppo_mask_low": Key(type=float, low=0, high=100, default=0.2),
            "dppo_mask_high": Key(type=float, low=0, high=100, default=0.2),
            **_TAU,
        },
        "ipo": {"ipo_threshold": Key(type=float, low=0, high=100, default=0.1), **_TAU},
    },
    "orchestrator.algo": {
        "grpo": {
            "length_penalty.num_output_tokens_weight": Key(type=float, low=0, high=10, default=0.25),
            "length_penalty.num_input_tokens_weight": _WEIGHT,
            "length_penalty.num_turns_weight": _WEIGHT,
        },
        "max_rl": {},
        "rae": {"decay": Key(type=float, low=0, high=0.9999, default=0.95)},
    },
    "orchestrator.train.source.curriculum.sampler": {
        "standard": {},
        "difficulty_pool": {
            "seed": Key(type=int, low=0, high=2**31 - 1, default=42),
            "pools.*.threshold": Key(type=float, low=-100, high=100, default=0.25),
            "pools.*.weight": Key(type=float, low=0, high=100, default=1.0),
        },
    },
}
"""Tables whose key `type` says which other keys they have. The first type is what prime-rl takes when none is given."""

_PLAIN: Final[Mapping[str, Rule]] = {
    "trainer.model.lora.alpha": Key(type=float, low=0.1, high=1024, default=32.0),
    "trainer.model.lora.dropout": Key(type=float, low=0, high=0.9, default=0.0),
    "trainer.model.lora.target_modules": Several(
        choices=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    ),
    "trainer.model.reduce_dtype": Key(type=str, choices=("float32", "bfloat16"), default="float32"),
    "trainer.matmul_precision": Key(type=str, choices=("highest", "high", "medium"), default="high"),
    "orchestrator.max_off_policy_steps": Key(type=int, low=0, high=16, default=8),
    "orchestrator.concurrency.initial_inflight": Key(type=int, low=2, high=128, default=32),
    "orchestrator.concurrency.max_inflight": Key(type=int, low=2, high=128, default=64),
    "orchestrator.train.filter_zero_advantages": Key(type=bool, default=True),
    "orchestrator.train.source.curriculum.gates.*.type": Key(
        type=str, choices=("advantage_range",), default="advantage_range"
    ),
    "orchestrator.train.source.curriculum.gates.*.reject_min": Key(type=float, low=-1000, high=1000, default=0.0),
    "orchestrator.train.source.curriculum.gates.*.reject_max": Key(type=float, low=-1000, high=1000, default=0.0),
    "inference.enable_fp32_lm_head": Key(type=bool, default=True),
    "inference.vllm.max_model_len": Key(type=int, low=256, high=16_384, default=2048),
    "inference.vllm.max_num_seqs": Key(type=int, low=8, high=256, default=256),
    "inference.vllm.max_num_batched_tokens": Key(type=int, low=512, high=32_768, default=8192),
    "inference.vllm.enforce_eager": Key(type=bool, default=False),
    "inference.vllm.enable_prefix_caching": Key(type=bool, default=True),
    "inference.vllm.enable_chunked_prefill": Key(type=bool, default=True),
}

OPEN: Final[Mapping[str, Rule]] = {
    **{
        f"{table}.type": Key(type=str, choices=tuple(kinds), default=next(iter(kinds)))
        for table, kinds in KINDS.items()
    },
    **{
        f"{table}.{name}": rule
        for table, kinds in KINDS.items()
        for keys in kinds.values()
        for name, rule in keys.items()
    },
    **_PLAIN,
}
"""Everything that [prime_rl] may set. prime-rl passes unknown keys of [inference.vllm] on to vLLM without a word; here they
are refused like any other."""

ARGUMENTS: Final = "orchestrator.train.source.env.taskset"
"""Below it stand the settings of a taskset of the author's own, by the names of its config class."""
SOURCE: Final = "orchestrator.train.source"
"""A list in prime-rl. A job has one source, and may write it as a table or as a list of one."""
