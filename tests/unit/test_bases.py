"""The shipped bases: what they score is what is recorded, and how they are made is repeatable."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from attrs import evolve

from nested_rl import tasks
from nested_rl.errors import UnknownName
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.pretrain import bases
from nested_rl.pretrain.baselines import SALT, measure

RECORD = json.loads((weights_path("nano-m").parent / "baselines.json").read_text("utf-8"))
PUBLISHED = {
    "calc_chain": 0.742,
    "multi_hop": 0.654,
    "string_pipeline": 0.545,
    "ledger": 0.242,
    "dispatch": 0.323,
    "triage": 0.352,
}


@pytest.mark.parametrize("name", ["nano-m", "nano-s"])
def test_the_shipped_weights_score_what_is_recorded(name):
    folder = weights_path(name)
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == RECORD["sha256"][name]
    model, alphabet = load_model(folder)
    for family in tasks.load(scale="nano"):
        for split in ("hidden", "dev"):
            recorded = RECORD["scores"][name][family.name][split]
            eval_set = family.eval_set(next(family.tasks()), split, salt=SALT)
            assert eval_set.digest == recorded["digest"]
            score = measure(model, alphabet, eval_set, eval_set.baseline_sampling, seed=7)
            assert abs(score.value - recorded["accuracy"]) < 3 * np.hypot(score.stderr, recorded["stderr"]), family.name


@pytest.mark.parametrize("split", ["hidden", "dev"])
def test_nano_s_leads_on_dispatch_and_nano_m_on_the_rest(split):
    for name in tasks.names():
        large, small = (RECORD["scores"][base][name][split]["accuracy"] for base in ("nano-m", "nano-s"))
        leader, other = (small, large) if name == "dispatch" else (large, small)
        assert leader - other >= 0.06, name
        assert abs(leader - PUBLISHED[name]) < 0.05, name


def test_a_build_is_repeatable_and_loads_as_it_was(tmp_path):
    short = evolve(bases.RECIPES["nano-s"], steps=6)
    lines = []
    first = bases.build("nano-s", tmp_path / "a", recipe=short, log=lines.append)
    bases.build("nano-s", tmp_path / "b", recipe=short)
    bases.build("nano-s", tmp_path / "c", recipe=short, seed=1)
    weights = [(tmp_path / x / "model.safetensors").read_bytes() for x in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert len(lines) == 6
    model, alphabet = load_model(tmp_path / "a")
    assert np.array_equal(model.theta, first.theta)
    assert (len(alphabet), model.config.vocab_size) == (64, 64)
    assert alphabet.decode(alphabet.encode("lb03t1b3?9497>7.")) == "lb03t1b3?9497>7."
    with pytest.raises(UnknownName, match="did you mean 'nano-s'"):
        bases.build("nano-x", tmp_path / "d")


def test_the_second_part_has_the_shares_that_are_asked_for():
    mix = bases.Mix(1.0, think=0.25, lazy=0.9)
    styles = Counter(mix.style(turn) for turn in range(1000))
    assert abs(styles["noisy"] - 250) < 5
    assert abs(styles["lazy"] - 675) < 5
    assert abs(styles["direct"] - 75) < 5


def test_pre_training_reads_training_questions_only():
    for family in tasks.load(scale="nano"):
        recipe = evolve(bases.RECIPES["nano-s"], steps=2, mix={family.name: bases.Mix(1.0, think=0.5)})
        alphabet = bases.tokenizer()
        for packed in bases._batches(recipe, seed=0):
            starts = np.flatnonzero((packed.positions == 0).ravel() & (packed.ids != alphabet.pad_id).ravel())
            prompts = [text_from(alphabet, packed.ids.ravel()[s : s + 24]) for s in starts]
            assert len(prompts) == recipe.rows
            assert all(tasks.bucket(family.name, family.key(q)) >= 2 for q in prompts)


def text_from(alphabet, ids):
    return alphabet.decode(ids).partition("?")[0]
