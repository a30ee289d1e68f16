"""The published folder of a nano run: PEFT on the agent's own folder gives the trained policy's log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nested_rl import grpo
from nested_rl.nano.folder import weights_path
from nested_rl.publish import prepare
from nested_rl.rundir import RunDir
from nested_rl.testing.outer import _group
from nested_rl.trainers import NanoTrainer
from nested_rl.types import Message

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

PROMPT = "task calc_chain k 3"
UPDATES = 3


async def trained(folder: Path) -> tuple[NanoTrainer, RunDir]:
    """A run directory with the checkpoints of a few updates; what the agent said is rewarded by its length."""
    trainer = NanoTrainer(lora_rank=8)
    run = RunDir.create(
        folder,
        {"steps": UPDATES, "parts": {"trainer": {"name": "nested_rl.trainers.nano.NanoTrainer", **trainer.settings()}}},
    )
    trainer.bind(run.path / "checkpoints")
    talk = (Message(role="user", content=PROMPT),)
    run.journal.append({"t": 0.0, "event": "checkpoint", "version": 0, "ref": await trainer.save("00000")})
    for step in range(UPDATES):
        policy = await trainer.policy()
        turns = [await policy.sample(talk, tools=(), max_tokens=40, seed=10 * step + i) for i in range(6)]
        report = await trainer.update([_group(turns, [len(t.ids) / 40 for t in turns], PROMPT)])
        assert report.stepped
        ref = await trainer.save(f"{report.version:05d}")
        event = {"event": "step.done", "step": step, "version": report.version, "ref": ref, "groups": [], "row": {}}
        run.journal.append({"t": 0.0, **event})
        run.metrics_log.append({"step": step, "reward/mean": float(step)})
    return trainer, run


async def test_the_published_adapter_is_the_trained_policy(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: make test-tinker")
    peft = pytest.importorskip("peft", reason="needs PEFT: make test-tinker")
    transformers = pytest.importorskip("transformers", reason="needs transformers: make test-tinker")
    trainer, run = await trained(tmp_path / "run")
    run.close()
    prepared = await prepare(RunDir.open(run.path), tmp_path / "published", which="")
    assert prepared.version == UPDATES
    policy = await trainer.policy()
    turn = await policy.sample((Message(role="user", content=PROMPT),), tools=(), max_tokens=40, seed=99)
    (datum,) = grpo.datums(_group([turn] * 2, [1.0, 0.0], PROMPT).episodes[0].transcript, 1.0)

    base = transformers.AutoModelForCausalLM.from_pretrained(weights_path("nano-agent"), dtype=torch.float32)
    tokens = torch.tensor([datum.tokens])

    def logprobs(model) -> np.ndarray:
        with torch.no_grad():
            told = torch.log_softmax(model(tokens[:, :-1]).logits[0], -1)
        return told[range(len(datum.targets)), tokens[0, 1:]].numpy()[list(datum.sampled)]

    start = logprobs(base)
    found = logprobs(peft.PeftModel.from_pretrained(base, prepared.path))
    ours = np.array(turn.logprobs)
    print(f"largest difference to PEFT {np.abs(found - ours).max():.1e}; to the start {np.abs(start - ours).max():.1e}")
    assert np.abs(found - ours).max() < 1e-4
    assert np.abs(start - ours).max() > 1e-3
    assert json.loads((prepared.path / "adapter_config.json").read_text())["r"] == 8
    assert "| adapter | rank 8, alpha 16 |" in (prepared.path / "README.md").read_text()
