"""How vLLM is run: settings, and the command-line options and environment that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from attrs import asdict, field, fields_dict, frozen, validators

from nested_rl.errors import SettingsError, UnknownName

Kind: TypeAlias = Literal["auto", "gpu", "cpu"]

ENVIRONMENT: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",  # none: a package that somebody put on the machine gets no say
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of every server: no network, no usage reports, no plugins, no code from anywhere but the installation."""

CPU_ENVIRONMENT: Final[Mapping[str, str]] = {"TORCHDYNAMO_DISABLE": "1"}
"""Otherwise the first request with logprobs waits for a compilation, --enforce-eager or not."""

_CPU_BATCHED_TOKENS: Final = 4096


@frozen(kw_only=True)
class VLLMEngine:
    """Settings of a vLLM server on a machine; they are part of what a baseline is measured under.

    `kind` "auto" takes the CPU variant where there is no GPU or where vLLM is built for CPUs. `max_model_len` is shortened to the
    model's own context. `gpu_memory_utilization` is a share, `cpu_kv_gib` the key-value cache of the CPU variant. `thinking` goes
    to the chat template as `enable_thinking`. `eager` spares the compilation, which takes longer than a score does.
    `extra_args` are further options of `vllm serve`, after ours. `python` is the machine's interpreter, `argv` a command to start
    instead of vLLM's own; it gets the same options.

    >>> VLLMEngine(dtype="float32").options(cpu=False)[-2:]
    ['--gpu-memory-utilization', '0.85']
    """

    kind: Kind = field(default="auto", validator=validators.in_(("auto", "gpu", "cpu")))
    dtype: str = "auto"
    max_model_len: int = field(default=4096, validator=validators.ge(16))
    max_num_seqs: int = field(default=128, validator=validators.ge(1))
    gpu_memory_utilization: float = field(default=0.85, validator=[validators.gt(0.0), validators.lt(1.0)])
    cpu_kv_gib: int = field(default=1, validator=validators.ge(1))
    thinking: bool = False
    eager: bool = True
    extra_args: tuple[str, ...] = field(default=(), converter=tuple)
    python: str = "python"
    argv: tuple[str, ...] = field(default=(), converter=tuple)

    @classmethod
    def of(cls, table: VLLMEngine | Mapping[str, Any] | None) -> VLLMEngine:
        """From a table, as a run file has it. Raises UnknownName for a setting that does not exist, SettingsError for its value.

        >>> VLLMEngine.of({"max_num_seq": 8})
        Traceback (most recent call last):
        nested_rl.errors.UnknownName: unknown engine setting 'max_num_seq'; did you mean 'max_num_seqs'?
        """
        if isinstance(table, VLLMEngine):
            return table
        for name in table or ():
            if name not in fields_dict(cls):
                raise UnknownName("engine setting", name, fields_dict(cls))
        try:
            return cls(**(table or {}))
        except (ValueError, TypeError) as error:
            raise SettingsError(f"engine: {error.args[0] if error.args else error}") from error

    def settings(self) -> dict[str, Any]:
        """What matters for the answers, and how they are come by; not where an interpreter lies."""
        return {name: value for name, value in asdict(self).items() if name != "python"}

    def options(self, *, cpu: bool) -> list[str]:
        """Options of `vllm serve`, besides those that the machine knows best: model, port, and the length of the context."""
        options: dict[str, object] = {
            "--dtype": self.dtype,
            "--max-num-seqs": self.max_num_seqs,
            "--load-format": "safetensors",
        }
        switches = ["--no-trust-remote-code", "--disable-log-stats", "--disable-uvicorn-access-log"]
        if self.eager or cpu:
            switches.append("--enforce-eager")
        if cpu:
            # A request with a seed and chunked prefill end the CPU variant ("CPU Generator does not use offset").
            switches.append("--no-enable-chunked-prefill")
            options["--max-num-batched-tokens"] = max(_CPU_BATCHED_TOKENS, self.max_model_len)
        else:
            options["--gpu-memory-utilization"] = self.gpu_memory_utilization
        return [*switches, *(word for name, value in options.items() for word in (name, str(value)))]

    def environment(self, *, cpu: bool) -> dict[str, str]:
        """Variables of the server, besides PATH, a HOME of its own, and its key."""
        own = {**CPU_ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": str(self.cpu_kv_gib)} if cpu else {}
        return {**ENVIRONMENT, **own}
