"""What TinkerTrainer does around the SDK: the order of requests, settings, money. Keys: test_tinker_keys; the real SDK: tests/tinker."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from tinker_double import Sdk, Status, Training
from tinker_play import MODEL, group, trainer

from nested_rl.describe import describe
from nested_rl.errors import SettingsError, TrainerError, UnknownName
from nested_rl.publish import prepare
from nested_rl.rundir import RunDir
from nested_rl.trainers import TinkerTrainer
from nested_rl.types import Message


async def test_gradient_step_and_snapshot_are_submitted_together_in_this_order(sdk: Sdk) -> None:
    made = trainer(lr=1e-3)
    report = await made.update([group([1.0, 0.0, 0.5, 0.5])])  # the two in the middle have no advantage
    assert [call[0] for call in sdk.calls] == [
        "check",
        "snapshot",
        "forward",  # for the ratios
        "forward_backward",
        "optim_step",
        "snapshot",
        "forward",  # the canary
    ]
    assert ("forward_backward", "importance_sampling", 2) in sdk.calls
    assert report.metrics["canary_proven"] == 1.0
    assert (report.ratio_mean, report.ess, report.metrics["logprob_gap"]) == (1.0, 1.0, 0.0)
    data, config = sdk.sent[0]
    assert config is None
    wire = data[0].loss_fn_inputs
    assert data[0].model_input == [3, 4, 7]
    assert wire["target_tokens"].tolist() == [4, 7, 8]
    assert wire["logprobs"].tolist() == [0.0, -1.0, -1.0]
    assert wire["advantages"][0] == 0.0
    assert wire["advantages"][1] > 0


async def test_every_setting_of_the_recipe_reaches_the_server(sdk: Sdk) -> None:
    made = trainer(rank=4, seed=11, lr=3e-4, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.02, clip=0.7)
    await made.update([group([1.0, 0.0])])
    assert sdk.asked == [{"base_model": MODEL, "rank": 4, "seed": 11}]
    assert sdk.adams == [
        {
            "learning_rate": 3e-4,
            "beta1": 0.8,
            "beta2": 0.9,
            "eps": 1e-6,
            "weight_decay": 0.02,
            "grad_clip_norm": 0.7,
        }
    ]


async def test_what_is_sent_for_the_gradient_is_the_truncated_batch(sdk: Sdk) -> None:
    """The weights in training say -1 for every token, the turns claim -4: a ratio of e³ that must not exceed the cap."""
    advantage = []
    for cap in (None, 2.0):
        made = trainer(ratio_cap=cap)
        report = await made.update([group([1.0, 0.0], logprob=-4.0)])
        assert report.ratio_max == pytest.approx(math.exp(3.0))  # what is told is the ratio as it was
        wire = sdk.sent[-1][0][0].loss_fn_inputs
        sampled = slice(1, None)
        weight = np.exp(-1.0 - wire["logprobs"][sampled]) * wire["advantages"][sampled]
        advantage.append(weight / (math.exp(3.0) if cap is None else cap))
        await made.close()
    assert (advantage[0] > 0.1).all()
    assert advantage[1] == pytest.approx(advantage[0])


async def test_after_an_update_turns_are_sampled_from_the_new_weights(sdk: Sdk) -> None:
    made = trainer()
    before = await made.policy()
    await made.update([group([1.0, 0.0])])
    after = await made.policy()
    talk = (Message(role="user", content="hello"),)
    for policy, level in ((before, -1.0), (after, -0.9)):
        turn = await policy.sample(talk, tools=(), max_tokens=9)
        assert turn.logprobs == (pytest.approx(level),)
        assert turn.version == policy.version
    assert (before.version, after.version) == (0, 1)


async def test_without_truncation_and_canary_nothing_is_scored_twice(sdk: Sdk) -> None:
    made = trainer(ratio_cap=None, canary_every=0)
    await made.update([group([1.0, 0.0])])
    assert not [call for call in sdk.calls if call[0] == "forward"]


async def test_the_first_use_blocks_a_thread_and_not_the_event_loop(sdk: Sdk) -> None:
    made = trainer()
    first, second = await asyncio.gather(made.policy(), made.policy())
    assert sdk.first_in != threading.current_thread().name
    assert [call[0] for call in sdk.calls] == ["check", "snapshot"]  # opened once, however many ask
    assert first.version == second.version == 0


async def test_thresholds_go_with_ppo_and_cispo(sdk: Sdk) -> None:
    made = trainer(loss="cispo", clip_range=(0.0, 3.0))
    await made.update([group([1.0, 0.0])])
    assert sdk.sent[0][1] == {"clip_low_threshold": 0.0, "clip_high_threshold": 3.0}


async def test_a_stale_sampler_ends_the_run_and_the_trainer_wants_a_checkpoint(sdk: Sdk) -> None:
    made = trainer()
    sdk.stale = True
    with pytest.raises(TrainerError, match="does not have the new weights"):
        await made.update([group([1.0, 0.0])])
    with pytest.raises(TrainerError, match="load a checkpoint"):
        await made.policy()
    sdk.stale = False
    await made.load("tinker://run/weights/00003-1f?version=3")
    assert (await made.policy()).version == 3


async def test_a_reference_holds_place_and_version_and_checkpoints_have_a_lifetime(sdk: Sdk) -> None:
    made = trainer(ttl_days=2)
    await made.update([])
    ref = await made.save("00001")
    assert ref.startswith("tinker://run/weights/00001-")
    assert ref.endswith("?version=1")
    assert ("save_state", 2 * 24 * 3600) in sdk.calls
    with pytest.raises(TrainerError, match="lifetime"):
        await made.load("tinker://gone/weights/00001-1f?version=1")
    with pytest.raises(SettingsError, match="plain file name"):
        await made.save("../up")


# ---------------------------------------------------------------- what goes wrong


async def test_a_failing_update_is_told_with_its_number(sdk: Sdk) -> None:
    made = trainer(ratio_cap=None)
    sdk.fails = Status(429, "slow down")
    with pytest.raises(TrainerError, match="update 1: too many requests"):
        await made.update([group([1.0, 0.0])])
    assert [call[0] for call in sdk.calls].count("forward_backward") == 1


async def test_an_unknown_model_names_those_there_are(sdk: Sdk) -> None:
    with pytest.raises(UnknownName, match="Qwen/Qwen3-8B"):
        await TinkerTrainer("Qwen/Qwen3-9B", context_tokens=100).policy()


async def test_the_context_is_asked_of_the_server_unless_given(sdk: Sdk) -> None:
    assert (await trainer().policy()).context_tokens == 64
    assert (await trainer(context_tokens=32).policy()).context_tokens == 32


@pytest.mark.parametrize(
    ("closing", "warns"), [(Status(404, "Not Found"), False), (Status(500, "broken"), True)], ids=str
)
async def test_a_session_that_cannot_be_ended_hurts_nobody(sdk: Sdk, caplog, closing, warns) -> None:
    made = trainer(prices={f"{kind}_usd_per_mtok": 1 for kind in ("prefill", "sample", "train")})
    await made.policy()
    sdk.closing = closing
    with caplog.at_level(logging.WARNING):
        await made.close()
    assert bool(caplog.records) is warns
    assert sdk.calls[-1] == ("close", "success")
    await made.close()  # twice is once


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rank": 0}, "rank"),
        ({"lr": "fast"}, "lr must be a number"),
        ({"loss": "dro"}, "loss"),
        ({"ratio_cap": 0.5}, "ratio_cap"),
        ({"clip_range": (1.2, 0.8)}, "clip_range"),
        ({"ttl_days": 0.01}, "ttl_days must be between an hour"),
        ({"canary_every": -1}, "canary_every"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"prices": {"train_usd_per_mtok": 1}}, "prices also needs prefill_usd_per_mtok"),
        ({"prices": {"training": 1}}, "unknown price"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(settings, told) -> None:
    with pytest.raises(SettingsError, match=told):
        trainer(**settings)


# ---------------------------------------------------------------- money


async def test_tokens_become_dollars_by_the_users_prices(sdk: Sdk) -> None:
    made = trainer(prices={"prefill_usd_per_mtok": 1e6, "sample_usd_per_mtok": 1e5, "train_usd_per_mtok": 1e4})
    policy = await made.policy()
    turn = await policy.sample((Message(role="user", content="hello"),), tools=(), max_tokens=9, seed=2**40 + 3)
    assert turn.usage.usd == pytest.approx(1.0 + 0.1)
    assert sdk.calls[-1] == ("sample", {"max_tokens": 9, "temperature": 1.0, "stop": [7], "seed": 3})
    report = await made.update([group([1.0, 0.0])])
    # two sequences of three inputs: ratios, gradient, canary; and the canary's four tokens read by the sampler
    assert report.usd == pytest.approx(3 * 6 * 0.01 + 8 * 1.0)
    assert report.metrics["used_train_tokens"] == 18
    assert made.usd == pytest.approx(report.usd + turn.usage.usd)


async def test_unknown_prices_are_said_once_and_tokens_are_shown(sdk: Sdk, caplog) -> None:
    made = trainer()
    with caplog.at_level(logging.WARNING):
        reports = [await made.update([group([1.0, 0.0])]) for _ in range(2)]
    assert len([r for r in caplog.records if "no prices are known" in r.getMessage()]) == 1
    assert [r.usd for r in reports] == [0.0, 0.0]
    assert reports[1].metrics["prices_known"] == 0.0
    assert reports[1].metrics["used_train_tokens"] == 36


async def test_the_bill_is_put_beside_what_was_counted(sdk: Sdk) -> None:
    def event(session, kind, tokens, usd):
        return SimpleNamespace(
            session_id=session,
            estimated_cost_usd=usd,
            event_info=SimpleNamespace(type=kind, token_count=tokens),
        )

    sdk.events = [
        event("session-1", "training", 18, 0.18),
        event("session-1", "sampling_prefill", 5, None),
        event("session-1", "storage", 0, 0.02),
        event("somebody else", "training", 1000, 10.0),
    ]
    made = trainer()
    await made.policy()
    found = await made.billed("2026-11-30T00:00:00Z", "2026-11-30T02:00:00Z")
    assert found.usd == pytest.approx(0.2)
    assert (found.tokens.train, found.tokens.prefill, found.unpriced) == (18, 5, 5)
    assert "billed $0.2000, 5 tokens not priced yet" in found.against(made.tokens, made.usd)


# ---------------------------------------------------------------- the adapter


CONFIG = b'{"base_model_name_or_path": "Qwen/Qwen3-8B", "r": 4}'


class Files(BaseHTTPRequestHandler):
    """Serves what a signed address leads to."""

    def do_GET(self) -> None:
        body = {"/config?sig=s3cret": CONFIG, "/weights?sig=s3cret": b"tensors"}.get(self.path)
        self.send_response(200 if body is not None else 403)
        self.end_headers()
        self.wfile.write(body or b"expired")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def files():
    server = HTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_an_adapter_is_downloaded_from_its_signed_addresses(sdk: Sdk, files, tmp_path) -> None:
    sdk.urls = {
        "adapter_config.json": f"{files}/config?sig=s3cret",
        "adapter_model.safetensors": f"{files}/weights?sig=s3cret",
    }
    await trainer().export_adapter(tmp_path / "adapter", ref="tinker://run/weights/00003-1f?version=3")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == b"tensors"
    with pytest.raises(SettingsError, match="exists already"):
        await trainer().export_adapter(tmp_path / "adapter")


async def test_a_run_on_tinker_is_published_from_there(sdk: Sdk, files, tmp_path) -> None:
    sdk.urls = {
        "adapter_config.json": f"{files}/config?sig=s3cret",
        "adapter_model.safetensors": f"{files}/weights?sig=s3cret",
    }
    asked = {"steps": 1, "parts": {"trainer": describe(trainer(rank=4))}, "tasks": ["calc_chain"]}
    run = RunDir.create(tmp_path / "run", asked)
    events = [
        {"event": "checkpoint", "version": 0, "ref": "tinker://run/weights/00000-1f?version=0"},
        {"event": "step.done", "step": 0, "version": 1, "ref": "tinker://run/weights/00001-1f?version=1", "row": {}},
    ]
    for event in events:
        run.journal.append({"t": 0.0, **event})
    run.metrics_log.append({"step": 0, "reward/mean": 0.5})
    run.close()
    prepared = await prepare(RunDir.open(run.path), tmp_path / "adapter", which="1")
    assert (prepared.version, prepared.base) == (1, MODEL)
    assert (prepared.path / "adapter_model.safetensors").read_bytes() == b"tensors"
    told = (prepared.path / "README.md").read_text()
    assert "| adapter | rank 4, alpha as in adapter_config.json |" in told
    assert "TinkerTrainer (rank 4, lr 4e-05" in told
    assert ("close", "success") in sdk.calls


async def test_a_download_is_all_or_nothing_and_tells_no_address(sdk: Sdk, files, tmp_path) -> None:
    sdk.urls = {
        "adapter_config.json": f"{files}/config?sig=s3cret",
        "adapter_model.safetensors": f"{files}/late?sig=s3cret",
    }
    with pytest.raises(TrainerError, match=r"adapter_model\.safetensors cannot be downloaded: status 403") as told:
        await trainer().export_adapter(tmp_path / "adapter")
    assert "s3cret" not in str(told.value)
    assert list(tmp_path.iterdir()) == []
    sdk.urls = {**sdk.urls, "../../evil": f"{files}/config?sig=s3cret"}
    with pytest.raises(TrainerError):
        await trainer().export_adapter(tmp_path / "adapter")
    sdk.urls = {"weights.bin": "x"}
    with pytest.raises(TrainerError, match=r"adapter_config\.json"):
        await trainer().export_adapter(tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []


def test_the_double_is_a_training_client_with_a_session() -> None:
    assert Training(Sdk()).model_id.partition(":train:")[0] == "session-1"
