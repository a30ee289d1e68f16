"""The digest of a model: the same wherever its base lies, and another for any other change."""

import json

import pytest

from nested_rl.model_files import ADAPTER_CONFIG, digest, sha256


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"tensors")

    def told(**config):
        (tmp_path / ADAPTER_CONFIG).write_text(json.dumps({"base_model_name_or_path": "/a", "r": 2, **config}))
        return digest(tmp_path.iterdir())

    return told


def test_where_the_base_lies_does_not_count(adapter):
    assert adapter() == adapter(base_model_name_or_path="/elsewhere")


def test_all_else_counts(adapter, tmp_path):
    found = {adapter(), adapter(r=4), adapter(lora_alpha=8), adapter(nested={"base_model_name_or_path": "/a"})}
    (tmp_path / "adapter_model.safetensors").write_bytes(b"others")
    found.add(adapter())
    (tmp_path / "more.safetensors").touch()
    assert len(found | {adapter()}) == 6


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\xff"])
def test_a_config_that_is_none_is_taken_as_it_is(tmp_path, text):
    for name in (ADAPTER_CONFIG, "config.json"):
        (tmp_path / name).write_text(text, "latin1")
    assert sha256(tmp_path / ADAPTER_CONFIG) == sha256(tmp_path / "config.json")
