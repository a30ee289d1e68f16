"""The nano trainer: its step and its checkpoints."""

from __future__ import annotations

import asyncio
import errno
import json

import numpy as np
import pytest
import safetensors.numpy
from nano_play import CALL, END, TOKENIZER, agent, ask, group_of, logprobs, sampled_group

from nested_rl.errors import RunDirError, SettingsError, TrainerError, UnknownName
from nested_rl.nano import folder as folders
from nested_rl.nano.folder import load_model
from nested_rl.nano.losses import score, token_logprobs
from nested_rl.nano.packing import pack_rows
from nested_rl.renderers.nano import CHAT_TEMPLATE, NanoRenderer
from nested_rl.trainers.nano import NanoTrainer
from nested_rl.trainers.nano_learner import Learner, Recipe
from nested_rl.types import Message, Transcript, Turn

# ---------------------------------------------------------------- the step


async def test_an_update_changes_the_next_policy_and_not_the_old_one(model_folder):
    trainer = NanoTrainer(model_folder)
    old = await trainer.policy()
    assert await trainer.policy() is old
    group = await sampled_group(trainer)
    said = group.episodes[0].transcript
    before = logprobs(old, said)
    report = await trainer.update([group])
    new = await trainer.policy()
    assert (report.version, report.stepped, new.version, old.version) == (1, True, 1, 0)
    assert np.array_equal(logprobs(old, said), before)
    assert np.abs(logprobs(new, said) - before).max() > 1e-3
    assert report.ratio_mean == pytest.approx(1, abs=1e-4)
    assert report.ess == pytest.approx(1, abs=1e-4)
    assert report.metrics["tokens"] == sum(len(t.ids) for e in group.episodes for t in e.transcript.turns)
    assert report.metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert {"entropy", "grad_norm", "halvings", "step_kl", "lr"} <= set(report.metrics)


async def test_what_is_rewarded_becomes_likelier(model_folder):
    trainer = NanoTrainer(model_folder, lr=3e-2, trust=0.2, kl=0.0)

    def starts_with_call(said):
        return sum(t.ids[0] == CALL for t in said.turns) / len(said.turns)

    async def share():
        policy = await trainer.policy()
        turns = [await policy.sample([ask("abc")], tools=(), max_tokens=1, seed=i) for i in range(60)]
        return sum(t.ids[0] == CALL for t in turns) / len(turns)

    before = await share()
    for step in range(12):
        await trainer.update([await sampled_group(trainer, seed=step + 1, size=12, reward=starts_with_call)])
    assert before < 0.25
    assert await share() > before + 0.3


async def test_off_policy_ratios_are_measured_and_truncated(model_folder):
    trainer = NanoTrainer(model_folder, trust=1.0, lr=0.05)
    stale = await sampled_group(trainer)
    for step in range(3):
        await trainer.update([await sampled_group(trainer, seed=step + 2)])
    report = await trainer.update([stale])
    assert report.ratio_max > 1.05
    assert report.ess < 1
    assert report.metrics["kl"] > 0


async def test_without_signal_only_the_version_moves(model_folder):
    trainer = NanoTrainer(model_folder)
    group = await sampled_group(trainer, reward=lambda said: 0.5)
    theta = trainer._learner.theta.copy()
    said = group.episodes[0].transcript
    skipped = group_of([said, said, said], [1.0, None, None])
    for version, batch in enumerate(([group], [skipped], [], [skipped, group]), start=1):
        report = await trainer.update(batch)
        assert (report.version, report.stepped) == (version, False)
        assert "grad_norm" not in report.metrics
    assert np.array_equal(trainer._learner.theta, theta)
    assert trainer._learner.optimiser.steps == 0
    assert (await trainer.policy()).version == 4


async def test_the_trust_region_halves_the_step(model_folder):
    free = NanoTrainer(model_folder, lr=0.1, trust=100.0)
    bound = NanoTrainer(model_folder, lr=0.1, trust=1e-4)
    group = await sampled_group(free)
    loose = await free.update([group])
    tight = await bound.update([group])
    assert loose.metrics["halvings"] == 0
    assert tight.metrics["halvings"] > 1
    assert tight.metrics["step_kl"] <= 1e-4 < loose.metrics["step_kl"]
    start = load_model(model_folder)[0].theta
    a, b = (t._learner.theta - start for t in (free, bound))
    assert np.allclose(a * 0.5 ** tight.metrics["halvings"], b, atol=1e-6)


@pytest.mark.parametrize("lora_rank", [None, 2])
async def test_the_gradient_is_that_of_the_loss(lora_rank):
    recipe = Recipe(kl=0.3, ratio_cap=1.2, lora_rank=lora_rank)
    learner = Learner(agent(dtype=np.float64), recipe)
    rng = np.random.default_rng(0)
    learner.set_theta(learner.theta + rng.normal(0, 0.1, learner.theta.size))
    rows = [rng.integers(1, len(TOKENIZER), n).tolist() for n in (6, 9, 4)]
    packed = pack_rows(rows, [[False, False] + [True] * (len(r) - 2) for r in rows], 0)
    old = token_logprobs(learner.model, packed) - rng.normal(0, 0.5, len(packed))
    advantage = rng.normal(size=len(packed))
    before = score(learner.model, packed, tape=True)
    ratio = np.exp(before.logprobs - old)
    assert (ratio > 1.2).any()
    weights = -np.minimum(ratio, 1.2) * advantage / len(packed)
    start = score(learner.start, packed).distribution
    gradient = learner.gradient(before, weights, start).copy()
    origin = learner.theta.copy()

    def loss(theta):
        learner.set_theta(theta)
        s = score(learner.model, packed)
        kl = (s.probabilities * (s.distribution - start)).sum() / len(packed)
        return float(weights @ s.logprobs + 0.3 * kl)

    for _ in range(4):
        direction = rng.normal(size=origin.size)
        measured = (loss(origin + 1e-6 * direction) - loss(origin - 1e-6 * direction)) / 2e-6
        assert measured == pytest.approx(float(gradient @ direction), rel=1e-5, abs=1e-8)


async def test_a_failed_update_leaves_everything_as_it_was(model_folder):
    trainer = NanoTrainer(model_folder, lr=1e30, trust=1e-9)
    group = await sampled_group(trainer)
    policy = await trainer.policy()
    theta = trainer._learner.theta.copy()
    with pytest.raises(TrainerError, match="small enough"):
        await trainer.update([group])
    assert trainer.version == 0
    assert await trainer.policy() is policy
    assert np.array_equal(trainer._learner.theta, theta)
    frozen = Turn(message=Message(role="assistant"))
    with pytest.raises(SettingsError, match="frozen"):
        await trainer.update([group_of([Transcript(conversation=(frozen,), end="stop")] * 2, [0.0, 1.0])])
    assert trainer.version == 0


async def test_tokens_of_another_model_are_refused(model_folder):
    trainer = NanoTrainer(model_folder)

    def said(*ids):
        turn = Turn(message=Message(role="assistant"), prompt_ids=(2,), ids=ids, logprobs=(-1.0,) * len(ids))
        return Transcript(conversation=(turn,), end="stop")

    with pytest.raises(TrainerError, match="another model"):
        await trainer.update([group_of([said(999), said(3)], [0.0, 1.0])])
    with pytest.raises(TrainerError, match="reads 48"):
        await trainer.update([group_of([said(*[3] * 60), said(3)], [0.0, 1.0])])


async def test_two_updates_at_once_are_refused(model_folder):
    trainer = NanoTrainer(model_folder)
    group = await sampled_group(trainer)
    done = await asyncio.gather(trainer.update([group]), trainer.update([group]), return_exceptions=True)
    assert sorted(type(d).__name__ for d in done) == ["TrainerError", "UpdateReport"]
    assert trainer.version == 1


@pytest.mark.parametrize(
    "wrong", [{"lr": 0}, {"horizon": 0}, {"ratio_cap": -1}, {"lora_rank": 0}, {"kl": "much"}, {"hold_share": 1.0}]
)
def test_settings_that_cannot_work_are_refused(model_folder, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        NanoTrainer(model_folder, **wrong)


def test_an_unknown_model_is_refused():
    with pytest.raises(UnknownName, match="nano-agnt"):
        NanoTrainer("nano-agnt")


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("lora_rank", [None, 2])
async def test_going_on_after_a_restart_is_going_on(model_folder, tmp_path, lora_rank):
    straight = NanoTrainer(model_folder, lora_rank=lora_rank, directory=tmp_path)
    groups = []
    for step in range(4):
        groups.append(await sampled_group(straight, seed=step + 1))
        if step == 2:
            ref = await straight.save("00002")
        await straight.update(groups[-1:])
    resumed = NanoTrainer(model_folder, lora_rank=lora_rank)
    await resumed.load(ref)
    assert resumed.version == 2
    assert (await resumed.policy()).version == 2
    for group in groups[2:]:
        report = await resumed.update([group])
    assert report.version == 4
    assert np.array_equal(resumed._learner.model.theta, straight._learner.model.theta)
    assert np.array_equal(resumed._learner.theta, straight._learner.theta)
    for key, value in straight._learner.optimiser.state().items():
        assert np.array_equal(resumed._learner.optimiser.state()[key], value)


async def test_a_checkpoint_is_a_model_folder(model_folder, tmp_path):
    trainer = NanoTrainer(model_folder, directory=tmp_path)
    await trainer.update([await sampled_group(trainer)])
    ref = await trainer.save("00001")
    model, tokenizer = load_model(ref)
    assert np.array_equal(model.theta, trainer._learner.model.theta)
    assert tokenizer.vocab == TOKENIZER.vocab
    assert (tmp_path / "00001/chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert json.loads((tmp_path / "00001/generation_config.json").read_text())["eos_token_id"] == [3, 4]
    assert json.loads((tmp_path / "00001/trainer.json").read_text())["version"] == 1
    # weights saved once more under the same name replace the old ones
    await trainer.update([await sampled_group(trainer, seed=2)])
    await trainer.save("00001")
    assert np.array_equal(load_model(ref)[0].theta, trainer._learner.model.theta)
    assert [p.name for p in tmp_path.iterdir()] == ["00001"]


async def test_a_run_binds_its_checkpoints(model_folder, tmp_path):
    trainer = NanoTrainer(model_folder)
    with pytest.raises(SettingsError, match="directory"):
        await trainer.save("x")
    trainer.bind(tmp_path / "run" / "checkpoints")
    assert await trainer.save("00000") == "00000"  # so that a run can be moved
    await trainer.load("00000")
    own = NanoTrainer(model_folder, directory=tmp_path / "own")
    own.bind(tmp_path / "run")
    assert await own.save("a") == str(tmp_path / "own" / "a")
    for name in ("", "a/b", "..", ".hidden"):
        with pytest.raises(SettingsError, match="plain file name"):
            await own.save(name)
    with pytest.raises(TrainerError, match="no such checkpoint"):
        await own.load("b")


async def test_a_replacement_cut_short_is_undone(model_folder, tmp_path):
    trainer = NanoTrainer(model_folder, directory=tmp_path)
    await trainer.save("best")
    (tmp_path / "best").rename(tmp_path / ".best.old")  # killed between the two renames
    await trainer.load("best")
    (tmp_path / "best").rename(tmp_path / ".best.old")
    await trainer.save("best")
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


async def test_a_full_disk_keeps_the_old_checkpoint(model_folder, tmp_path, monkeypatch):
    trainer = NanoTrainer(model_folder, directory=tmp_path)
    await trainer.save("a")
    await trainer.update([await sampled_group(trainer)])
    write = folders.write_bytes

    def full(path, data):
        if path.name == "optimizer.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(folders, "write_bytes", full)
    with pytest.raises(RunDirError, match="No space left"):
        await trainer.save("a")
    await trainer.load("a")
    assert trainer.version == 0
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


ANOTHERS = {"other starting weights", "lora_rank=8"}
"""Of a checkpoint that is whole, but another trainer's."""


def _nan(values):
    return values * np.float32("nan")


@pytest.mark.parametrize(
    ("file", "damage", "says"),
    [
        ("model.safetensors", lambda t: t | {"model.norm.weight": _nan(t["model.norm.weight"])}, "not finite"),
        ("model.safetensors", lambda t: {k: v for k, v in t.items() if k != "model.norm.weight"}, "missing"),
        ("optimizer.safetensors", lambda t: t | {"second": _nan(t["second"])}, "not finite"),
        ("optimizer.safetensors", lambda t: {k: v for k, v in t.items() if k != "first"}, "first is missing"),
        ("optimizer.safetensors", lambda t: t | {"first": t["first"][:3]}, "shape"),
        ("optimizer.safetensors", None, "no such file"),
        ("trainer.json", {"version": -1}, "version"),
        ("trainer.json", {"start": "0" * 64}, "other starting weights"),
        ("trainer.json", {"recipe": {"lora_rank": 8}}, "lora_rank=8"),
        ("trainer.json", None, "no such file"),
    ],
)
async def test_a_damaged_checkpoint_names_its_file(model_folder, tmp_path, file, damage, says):
    trainer = NanoTrainer(model_folder, directory=tmp_path)
    await trainer.update([await sampled_group(trainer)])
    path = tmp_path / "a" / file
    await trainer.save("a")
    if damage is None:
        path.unlink()
    elif file.endswith(".json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    else:
        safetensors.numpy.save_file(damage(safetensors.numpy.load_file(path)), path)
    theta = trainer._learner.theta.copy()
    with pytest.raises(TrainerError if says in ANOTHERS else RunDirError, match=says) as caught:
        await trainer.load("a")
    assert str(path) in str(caught.value)
    assert np.array_equal(trainer._learner.theta, theta)


async def test_only_the_adapter_is_trained_and_exported(model_folder, tmp_path):
    from nested_rl.nano.lora import LoRA

    trainer = NanoTrainer(model_folder, lora_rank=2)
    await trainer.update([await sampled_group(trainer)])
    trainer.export_adapter(tmp_path / "adapter")
    base, _ = load_model(model_folder)
    untouched = base.tensors["model.embed_tokens.weight"].copy()
    LoRA.load(tmp_path / "adapter", base)
    assert np.array_equal(base.theta, trainer._learner.model.theta)
    assert np.array_equal(base.tensors["model.embed_tokens.weight"], untouched)
    assert not np.array_equal(base.theta, trainer._learner.start.theta)
    with pytest.raises(SettingsError, match="lora_rank=8"):
        NanoTrainer(model_folder).export_adapter(tmp_path / "x")


def test_the_default_renderer_is_the_agents(model_folder):
    trainer = NanoTrainer(model_folder)
    assert isinstance(trainer.renderer, NanoRenderer)
    assert trainer.renderer.stop_ids == (END, TOKENIZER.eos_id)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"horizon": 2.5}, "horizon must be a whole number, not 2.5"),
    ],
)
def test_a_setting_of_the_wrong_kind_is_refused_in_plain_words(setting, words):
    with pytest.raises(SettingsError, match=words):
        NanoTrainer(**setting)
