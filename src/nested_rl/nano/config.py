"""The part of a Qwen3 `config.json` that matters here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, fields, frozen

from nested_rl.errors import SettingsError


@frozen(kw_only=True)
class Qwen3Config:
    """Shapes and constants of a dense Qwen3 model, spelled as Hugging Face spells them.

    >>> Qwen3Config(vocab_size=8).num_attention_heads
    4
    """

    vocab_size: int = 64
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 128
    eos_token_id: int = 1
    pad_token_id: int = 0

    def __attrs_post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"config: {name} must be a positive whole number, not {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise SettingsError("config: num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise SettingsError("config: head_dim must be even, rotary positions turn pairs")
        for name in ("eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < self.vocab_size:
                raise SettingsError(f"config: {name} must be an id below vocab_size {self.vocab_size}, not {value!r}")

    @classmethod
    def from_hf(cls, values: Mapping[str, Any]) -> Qwen3Config:
        """Read `config.json`; refuse what the engine does not compute."""
        if values.get("model_type") != "qwen3":
            raise SettingsError(f"config: model_type is {values.get('model_type')!r}, only dense 'qwen3' is supported")
        if values.get("attention_bias"):
            raise SettingsError("config: attention_bias is not supported")
        if values.get("use_sliding_window"):
            raise SettingsError("config: use_sliding_window is not supported")
        if values.get("hidden_act", "silu") != "silu":
            raise SettingsError(f"config: hidden_act {values['hidden_act']!r} is not supported, only 'silu'")
        rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind != "default":
            raise SettingsError(f"config: scaled rotary positions ({kind!r}) are not supported")
        known = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        # transformers 5 spells it inside rope_parameters, transformers 4 at the top
        known["rope_theta"] = float(rope.get("rope_theta", values.get("rope_theta", 10000.0)))
        return cls(**known)

    def to_hf(self, dtype: str) -> dict[str, Any]:
        """What goes into `config.json`, in both spellings of transformers 4 and 5."""
        return {
            **asdict(self),
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "use_cache": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": self.num_hidden_layers,
            "bos_token_id": None,
            "dtype": dtype,
            "torch_dtype": dtype,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
        }


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
