"""The harness, the outer trainer, the rewards and the trackers keep their contracts."""

import pytest

from nested_rl.harness.agent import ToolHarness
from nested_rl.nano.config import Qwen3Config
from nested_rl.nano.folder import save_model
from nested_rl.nano.model import Qwen3
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.renderers.nano import CHAT_TEMPLATE, SPECIALS
from nested_rl.rewards import UpliftReward
from nested_rl.testing import HarnessSuite, OuterTrainerSuite, RewardSuite, TrackerSuite
from nested_rl.trackers.guard import guarded
from nested_rl.trackers.jsonl import JsonlTracker
from nested_rl.trainers.nano import NanoTrainer


class TestToolHarness(HarnessSuite):
    @pytest.fixture
    def harness(self):
        return ToolHarness()


@pytest.fixture(scope="session")
def small_agent(tmp_path_factory):
    """A random model that knows the characters of a nano agent's task."""
    words = Tokenizer.pieces(
        SPECIALS, "abcdefghijklmnopqrstuvwxyz_0123456789 \n", [], pad="<pad>", eos="<stop>", unk="<unk>"
    )
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=24,
        head_dim=8,
        max_position_embeddings=96,
        eos_token_id=words.eos_id,
        pad_token_id=words.pad_id,
    )
    path = tmp_path_factory.mktemp("agent")
    save_model(path, Qwen3(config, seed=1), words, "float32", chat_template=CHAT_TEMPLATE)
    return path


class TestNanoTrainer(OuterTrainerSuite):
    @pytest.fixture
    def trainer(self, small_agent, tmp_path):
        return NanoTrainer(small_agent, directory=tmp_path)


class TestNanoTrainerWithAdapter(OuterTrainerSuite):
    @pytest.fixture
    def trainer(self, small_agent, tmp_path):
        return NanoTrainer(small_agent, directory=tmp_path, lora_rank=4)


class TestUpliftReward(RewardSuite):
    @pytest.fixture
    def reward(self):
        return UpliftReward()


class TestPlainFunction(RewardSuite):
    @pytest.fixture
    def reward(self):
        return lambda outcome: outcome.uplift - 0.1 * outcome.usd


class TestJsonlTracker(TrackerSuite):
    @pytest.fixture
    def tracker(self, tmp_path):
        return JsonlTracker(tmp_path / "rows.jsonl")


class TestGuardedTracker(TrackerSuite):
    @pytest.fixture
    def tracker(self, tmp_path):
        return guarded([JsonlTracker(tmp_path / "rows.jsonl")])
