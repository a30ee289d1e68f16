"""Keys of prime-rl that a job may not set, each with the reason or with where the setting is instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MOVED: Final[Mapping[str, str]] = {
    "model.name": "[model] base",
    "max_steps": "[training] steps",
    "trainer.max_steps": "[training] steps",
    "orchestrator.max_steps": "[training] steps",
    "seq_len": "[training] seq_len",
    "trainer.model.seq_len": "[training] seq_len",
    "orchestrator.seq_len": "[training] seq_len",
    "orchestrator.batch_size": "[training] batch_size",
    "orchestrator.group_size": "[training] group_size",
    "orchestrator.train.source.group_size": "[training] group_size",
    "trainer.optim.lr": "[training] learning_rate",
    "trainer.model.lora.rank": "[training] lora_rank",
    "orchestrator.train.sampling.temperature": "[rollout] temperature",
    "orchestrator.train.source.sampling.temperature": "[rollout] temperature",
    "orchestrator.train.sampling.max_completion_tokens": "[rollout] max_tokens",
    "orchestrator.train.source.sampling.max_completion_tokens": "[rollout] max_tokens",
    "orchestrator.train.source.env.agent.max_turns": "[rollout] max_turns",
}
"""Keys that job.toml has under a name of its own."""

RENAMED: Final[Mapping[str, str]] = {
    "rollouts_per_example": "[training] group_size",
    "orchestrator.rollouts_per_example": "[training] group_size",
    "max_async_level": "orchestrator.max_off_policy_steps",
    "orchestrator.max_async_level": "orchestrator.max_off_policy_steps",
    "orchestrator.oversampling_factor": "orchestrator.concurrency.max_inflight",
    "orchestrator.max_inflight_rollouts": "orchestrator.concurrency.max_inflight",
    "orchestrator.filters": "orchestrator.train.source.curriculum.gates",
    "orchestrator.pre_batch_filters": "orchestrator.train.source.curriculum.gates",
    "orchestrator.buffer": "orchestrator.train.source.curriculum.sampler",
    "orchestrator.advantage": "orchestrator.algo",
    "orchestrator.sampling": "[rollout]",
    "trainer.loss.ratio_type": "trainer.loss.type",
    "trainer.loss.mask_ratio_high": "trainer.loss.dppo_mask_high",
    "trainer.loss.mask_ratio_low": "trainer.loss.dppo_mask_low",
    "inference.model.max_model_len": "inference.vllm.max_model_len",
    "inference.model.enforce_eager": "inference.vllm.enforce_eager",
}
"""Names of earlier versions, which this one no longer knows."""

_MACHINE: Final = "it follows from the machine at hand"
_WEIGHTS: Final = "how weights travel is fixed: the checkpoint is made of the files that are broadcast"
_PATHS: Final = "where results are written is decided on the machine"
_BASE: Final = "model code, tokenizer, chat template and configuration come from the base, never from a job"
_CODE: Final = "code of a job runs only as its environment, never in the processes that hold weights"
_ENVIRONMENT: Final = "a job sets no environment variables"
_WATCHED: Final = "a run is watched and measured from outside"
_NETWORK: Final = "a job has no network and no other models"
_SAMPLING: Final = "the trainer would not know of it, and its probability ratios would be wrong"
_HOSTED: Final = "how environments are hosted is fixed"
_EXPERT: Final = "it is not for models like these"

_SERVER: Final = (
    "backend_port", "deployment", "dry_run", "enable_fp32_router_logits", "kv_cache_offload", "log", "output_dir",
    "router", "server", "slurm", "use_deep_gemm", "use_pd_kv_transfer",
)  # fmt: skip
_ENGINE: Final = (
    "all2all_backend", "api_server_count", "data_parallel_rpc_port", "data_parallel_size",
    "data_parallel_size_local", "dtype", "enable_dbo", "enable_eplb", "enable_expert_parallel", "enable_lora",
    "enable_return_routed_experts", "gpu_memory_utilization", "kv_cache_memory_bytes", "lora_target_modules",
    "max_cpu_loras", "max_lora_rank", "max_loras", "quantization", "tensor_parallel_size",
)  # fmt: skip
"""Named one by one: below [inference.vllm] everything else is a mistake, and is told as one."""

DENIED: Final[Mapping[str, str]] = {
    "trainer.loss.import_path": _CODE,
    "trainer.loss.kwargs": _CODE,
    "orchestrator.algo.filter": _CODE,
    "orchestrator.algo.renderer": _BASE,
    "orchestrator.algo.teacher": _NETWORK,
    "orchestrator.algo.sampling": _NETWORK,
    "orchestrator.algo.demo_key": "self-distillation is not offered",
    "orchestrator.algo.template": "self-distillation is not offered",
    "orchestrator.algo.roles": "only what the model says is trained on",
    "orchestrator.algo.episode_agents": "there is one agent",
    "orchestrator.algo.length_penalty.type": "there is only one kind",
    "env_vars": _ENVIRONMENT,
    "trainer.env_vars": _ENVIRONMENT,
    "orchestrator.env_vars": _ENVIRONMENT,
    "inference.env_vars": _ENVIRONMENT,
    "slurm": "there is no cluster; a job has one machine",
    "deployment": _MACHINE,
    "output_dir": _PATHS,
    "trainer.output_dir": _PATHS,
    "orchestrator.output_dir": _PATHS,
    "run": _PATHS,
    "clean": _PATHS,
    "dry_run": "a job is trained, or it is nothing",
    "resume": "a job starts from its base",
    "trainer.resume": "a job starts from its base",
    "orchestrator.resume": "a job starts from its base",
    "ckpt": _PATHS,
    "trainer.ckpt": _PATHS,
    "orchestrator.ckpt": _PATHS,
    "log": _WATCHED,
    "trainer.log": _WATCHED,
    "orchestrator.log": _WATCHED,
    "monitors": _WATCHED,
    "wandb": _WATCHED,
    "trainer.monitors": _WATCHED,
    "trainer.heartbeat": _WATCHED,
    "trainer.metrics_server": _WATCHED,
    "trainer.enable_token_export": _WATCHED,
    "trainer.trace_path": _PATHS,
    "trainer.memory_profiler_path": _PATHS,
    "trainer.gc": _MACHINE,
    "trainer.dist_timeout_seconds": _MACHINE,
    "trainer.data": "data come from the environment",
    "trainer.enable_router_replay": _EXPERT,
    "orchestrator.monitors": _WATCHED,
    "orchestrator.heartbeat": _WATCHED,
    "orchestrator.collect_inference_metrics": _WATCHED,
    "orchestrator.inference_metrics_roles": _WATCHED,
    "model": _BASE,
    "tokenizer": _BASE,
    "trainer.tokenizer": _BASE,
    "trainer.model": _MACHINE,
    "trainer.model.name": _BASE,
    "trainer.model.trust_remote_code": _BASE,
    "trainer.model.vlm": _EXPERT,
    "trainer.model.lora.modules_to_save": "an adapter is kept as an adapter",
    "orchestrator.model": _BASE,
    "orchestrator.tokenizer": _BASE,
    "orchestrator.renderer": _BASE,
    "orchestrator.env": "the environment is environment.py",
    "orchestrator.eval": "the evaluation happens elsewhere; evaluating in training only takes time",
    "weight_broadcast": _WEIGHTS,
    "trainer.weight_broadcast": _WEIGHTS,
    "orchestrator.weight_broadcast": _WEIGHTS,
    "inference.weight_broadcast": _WEIGHTS,
    "rollout_transport": _MACHINE,
    "trainer.rollout_transport": _MACHINE,
    "orchestrator.rollout_transport": _MACHINE,
    "orchestrator.num_train_workers": _MACHINE,
    "orchestrator.pad_to_multiple_of": _MACHINE,
    "orchestrator.env_server_base_port": _HOSTED,
    "orchestrator.tasks_per_minute": _HOSTED,
    "orchestrator.token_batch_size": "batches are counted in completions: [training] batch_size",
    "orchestrator.concurrency.min_inflight": "it is 1: the controller of prime-rl finds the rest",
    "orchestrator.train.env": "the environment is environment.py",
    "orchestrator.train.sampling.extra_body": _SAMPLING,
    "orchestrator.train.source": _HOSTED,
    "orchestrator.train.source.sampling": _SAMPLING,
    "orchestrator.train.source.algo": "there is one source: set orchestrator.algo",
    "orchestrator.train.source.env.taskset.id": "the taskset is environment.py",
    "orchestrator.train.source.env.taskset.system_prompt": "it would be a file on the machine; write it into environment.py",
    "orchestrator.train.source.env.taskset.task": "settings of rewards belong into environment.py",
    **{f"inference.{name}": _MACHINE for name in _SERVER},
    **{f"inference.vllm.{name}": _MACHINE for name in _ENGINE},
    "inference.vllm.trust_remote_code": _BASE,
    "inference.vllm.model": _BASE,
    "inference.vllm.chat_template": _BASE,
    "inference.vllm.tool_call_parser": _BASE,
    "inference.vllm.reasoning_parser": _BASE,
    "inference.vllm.rope_scaling": _BASE,
    "inference.vllm.seed": "it is the job's own seed",
}
"""Keys, and all below them, with the reason. A longer path outweighs a shorter one, and an open key outweighs both."""

DENIED_VALUES: Final[Mapping[tuple[str, str], str]] = {
    ("trainer.loss.type", "custom"): _CODE,
    ("orchestrator.algo.type", "opd"): _NETWORK,
    ("orchestrator.algo.type", "opsd"): "self-distillation is not offered",
    ("orchestrator.algo.type", "sft"): _NETWORK,
    ("orchestrator.algo.type", "echo"): "only what the model says is trained on",
    ("orchestrator.algo.type", "hierarchical_grpo"): "there is one agent",
}
"""Values of open keys that prime-rl knows and a job may not choose."""
