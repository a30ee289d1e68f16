"""What the nano agent was taught, how it was built, and what it does before any RL."""

import asyncio
import hashlib
import json
import random
from collections import Counter

import numpy as np
import pytest

from nested_rl import replies, tasks
from nested_rl.harness.agent import ToolHarness
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.pretrain import agent, corpus, novice, pieces
from nested_rl.renderers.nano import NanoRenderer
from nested_rl.trainers.nano_policy import NanoPolicy
from nested_rl.types import Draft, Message, Turn

TOKENS = pieces.tokenizer()
RENDERER = NanoRenderer(TOKENS)
N = 240


@pytest.fixture(scope="module")
def verdicts():
    inner = NanoInnerTrainer()
    yield corpus.Verdicts(inner)
    asyncio.run(inner.close())


@pytest.fixture(scope="module")
def samples(verdicts):
    return asyncio.run(agent.collect(corpus.Corpus(verdicts, RENDERER, seed=1), N))


def share(flags):
    flags = list(flags)
    return sum(flags) / len(flags)


def calls(sample):
    return [call for turn in sample.transcript.turns for call in turn.message.tool_calls]


# ---------------------------------------------------------------- vocabulary


def test_pieces_are_stable_and_few():
    assert len(TOKENS) <= 270
    assert pieces.tokenizer().vocab == TOKENS.vocab
    assert TOKENS.vocab[6:102] == pieces.CHARACTERS


def test_every_name_is_one_token_a_word():
    for name in tasks.names():
        words = name.split("_")
        assert set(words) <= set(pieces.NAMES)
        assert len(TOKENS.encode(name)) == 2 * len(words) - 1


def test_replies_are_short():
    for code in pieces.EXPECTED:
        text = replies.ERROR.format(brief=replies.BRIEF[code].format(name="learning_rate", type="NameError"))
        assert len(TOKENS.encode(text)) <= 2, text
    assert len(TOKENS.encode(replies.README)) == 1
    assert len(TOKENS.encode(replies.accuracy({"nano-s": 0.26, "nano-m": 0.71}))) == 10


# ---------------------------------------------------------------- transcripts


def test_the_same_seed_gives_the_same_corpus(verdicts, samples):
    again = asyncio.run(agent.collect(corpus.Corpus(verdicts, RENDERER, seed=1), 30))
    assert [s.ids for s in again] == [s.ids for s in samples[:30]]
    other = asyncio.run(agent.collect(corpus.Corpus(verdicts, RENDERER, seed=2), 30))
    assert [s.ids for s in other] != [s.ids for s in again]


def test_transcripts_are_short_and_cut_nowhere(samples):
    lengths = [len(s.ids) for s in samples]
    assert np.mean(lengths) <= 110
    assert max(lengths) < corpus.CONTEXT
    assert all(TOKENS.vocab[s.ids[-1]] in ("<end>", "<stop>") for s in samples)


def test_every_text_comes_back_from_its_tokens(samples):
    for sample in samples:
        for item in sample.transcript.conversation:
            texts = [item.content] if isinstance(item, Message) else []
            texts += [
                text
                for call in getattr(getattr(item, "message", None), "tool_calls", ())
                for text in call.arguments.values()
            ]
            for text in texts:
                assert TOKENS.decode(TOKENS.encode(text, specials=False)) == text


def test_what_the_agent_said_is_trained_and_nothing_else(samples):
    for sample in samples[:40]:
        assert len(sample.ids) == len(sample.said)
        spoken = TOKENS.decode(i for i, said in zip(sample.ids, sample.said, strict=True) if said)
        assert spoken == TOKENS.decode(i for turn in sample.transcript.turns for i in RENDERER.render([turn]))
        heard = TOKENS.decode(i for i, said in zip(sample.ids, sample.said, strict=True) if not said)
        assert heard.startswith("<obs>task ")
        assert "<call>" not in heard


def test_most_transcripts_are_faulty_and_some_are_valid(samples):
    assert 0.08 <= share(s.valid_first for s in samples) <= 0.25
    assert 0.22 <= share(s.valid for s in samples) <= 0.42
    assert {s.transcript.end for s in samples} == {"submitted", "attempts", "stop"}


def test_every_expected_fault_is_met(samples):
    met = {v.problems[0].code for s in samples for v in s.validations if not v.ok}
    rare = {"job.syntax", "environment.raised", "reward.junk"}
    assert set(pieces.EXPECTED) - rare <= met
    assert met <= set(pieces.EXPECTED)


def test_names_are_made_up_and_mostly_copied(samples):
    given = [s.transcript.conversation[0].content.split()[1] for s in samples]
    assert len(set(given)) > 0.6 * N
    assert Counter(given).most_common(1)[0][1] < 0.05 * N
    copied = [
        f'make("{name}"' in call.arguments["content"]
        for name, s in zip(given, samples, strict=True)
        for call in calls(s)[:6]
        if call.name == "write_file" and "make(" in call.arguments["content"]
    ]
    assert 0.75 <= share(copied) <= 0.96


def test_the_base_follows_the_scores_that_were_shown():
    rng = random.Random(0)
    shown = {"nano-s": 0.31, "nano-m": 0.12}

    def stronger(scores):
        drafts = [novice.sketch(rng, "stone", scores).values.get("base", "") for _ in range(2000)]
        return share(base == '"nano-s"' for base in drafts if base in ('"nano-s"', '"nano-m"'))

    assert stronger(shown) == pytest.approx(0.9, abs=0.03)
    assert stronger(None) == pytest.approx(0.5, abs=0.04)


def test_who_asks_for_the_baselines_writes_with_more_care(samples):
    """Otherwise asking would seem to change nothing, and RL would lose the habit before it can pay."""
    asked, not_asked = ([s.valid for s in samples if s.transcript.asked_baselines is flag] for flag in (True, False))
    assert min(len(asked), len(not_asked)) > 0.25 * N
    assert share(asked) > share(not_asked)


def test_invented_scores_favour_neither_base():
    rng = random.Random(0)
    drawn = [corpus.invent_scores(rng) for _ in range(1000)]
    assert share(s["nano-m"] > s["nano-s"] for s in drawn) == pytest.approx(0.5, abs=0.06)
    assert all(0 < v < 1 and s["nano-m"] != s["nano-s"] for s in drawn for v in s.values())


async def test_remembered_verdicts_are_what_the_trainer_says(samples):
    inner = NanoInnerTrainer()
    family = tasks.load("ledger", scale="nano")[0]
    task = next(family.tasks())
    kept = corpus.Verdicts(inner)
    rng = random.Random(3)
    seen = Counter()
    for _ in range(40):
        sketch = novice.sketch(rng, "ledger", None)
        files = {"job.toml": sketch.job, "environment.py": sketch.environment}
        real = await inner.validate(Draft(task=task, files=files))
        mine = await kept.of(task, files)
        assert mine.ok == real.ok
        assert mine.problems[:1] == real.problems[:1]
        seen[real.ok] += 1
    await inner.close()
    assert min(seen[True], seen[False]) >= 4


async def test_an_examiner_swaps_names_both_ways(verdicts):
    family = tasks.load("triage", scale="nano")[0]
    task = next(family.tasks())
    desk = corpus.Examiner(task, "velvet_stone", {}, verdicts)
    sketch = novice.Sketch(
        given="velvet_stone",
        values={"base": '"nano-m"', "steps": "12", "learning_rate": "5e-4"},
        reward=novice.SOUND[0],
        name="velvet_stone",
        k="2",
    )
    good = await desk.submit({"job.toml": sketch.job, "environment.py": sketch.environment})
    assert good.ok
    assert good.families == ("triage",)
    sketch.name = "velvet_river"
    bad = await desk.submit({"job.toml": sketch.job, "environment.py": sketch.environment})
    assert [p.brief for p in bad.problems] == ["unknown family velvet_river"]


def test_reading_replies():
    assert novice.what_is_wrong("error: no job.toml") == ("files.missing", "job.toml")
    assert novice.what_is_wrong("error: unknown base nano-l") == ("job.base", "nano-l")
    assert novice.what_is_wrong("error: reward raised ValueError") == ("reward.raised", "ValueError")
    assert novice.what_is_wrong("valid") == ("", "")


# ---------------------------------------------------------------- the build


TINY = agent.Recipe(transcripts=12, steps=6, rows=4)


def test_a_build_is_repeatable_and_loads(verdicts, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        agent.build(tmp_path / name, verdicts, seed=seed, recipe=TINY)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    model, tokenizer = load_model(tmp_path / "a")
    assert tokenizer.vocab == TOKENS.vocab
    assert model.config.max_position_embeddings == corpus.CONTEXT
    about = json.loads((tmp_path / "a" / agent.PROVENANCE).read_text())
    assert about["replies_sha256"] == agent.replies_digest()
    stops = json.loads((tmp_path / "a" / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(stops) == sorted(RENDERER.stop_ids)


def test_the_shipped_agent_was_taught_todays_replies():
    about = json.loads((weights_path(agent.NAME) / agent.PROVENANCE).read_text())
    hint = "the nano agent was taught other texts: run `nested-rl models build --only nano-agent`"
    assert about["replies_sha256"] == agent.replies_digest(), hint
    assert about["corpus_version"] == corpus.VERSION, hint
    weights = (weights_path(agent.NAME) / "model.safetensors").read_bytes()
    assert about["sha256"] == hashlib.sha256(weights).hexdigest(), (
        "the weights are not those that provenance.json is about"
    )
    assert load_model(weights_path(agent.NAME))[1].vocab == TOKENS.vocab, hint


async def untrained(verdicts, families, n):
    """Episodes of the shipped agent in the real harness, in lockstep groups of 32: (task, transcript, desk)."""
    model, tokenizer = load_model(weights_path(agent.NAME))
    policy = NanoPolicy(model, NanoRenderer(tokenizer), version=0)
    scores = {"nano-s": 0.34, "nano-m": 0.61}
    streams = [family.tasks() for family in families]

    async def one(seat, i):
        task = next(streams[i % len(streams)])
        desk = corpus.Examiner(task, task.family, scores, verdicts)
        try:
            return task, await ToolHarness().run(task, seat, desk, seed=i), desk
        finally:
            seat.close()

    found = []
    for start in range(0, n, 32):
        found += await asyncio.gather(*(one(seat, start + i) for i, seat in enumerate(policy.seats(32))))
    return found


async def test_the_untrained_agent_writes_jobs_and_mostly_fails(verdicts):
    families = tasks.load("calc_chain", "string_pipeline", "dispatch", "triage", scale="nano")
    episodes = await untrained(verdicts, families, 96)
    first = share(bool(desk.validations) and desk.validations[0].ok for _, _, desk in episodes)
    some = share(any(v.ok for v in desk.validations) for _, _, desk in episodes)
    assert 0.04 <= first <= 0.25
    assert 0.12 <= some <= 0.45
    assert share(t.end == "malformed" for _, t, _ in episodes) <= 0.05
    assert share(t.end == "tokens" for _, t, _ in episodes) <= 0.05
    named = [
        f'make("{task.family}"' in call.arguments["content"]
        for task, transcript, _ in episodes
        for call in [c for turn in transcript.turns for c in turn.message.tool_calls]
        if call.name == "write_file" and 'make("' in call.arguments.get("content", "")
    ]
    assert share(named) >= 0.7
    assert 0.2 <= share(t.asked_baselines for _, t, _ in episodes) <= 0.55
    for _, transcript, _ in episodes:
        turn = transcript.turns[-1]
        assert len(turn.ids) == len(turn.logprobs)
        assert len(turn.prompt_ids) + len(turn.ids) <= corpus.CONTEXT


async def test_turns_are_a_growing_prefix(verdicts):
    """Each turn's prompt is all that came before: what importance ratios are computed on is what was sampled."""
    (episode, *_) = await untrained(verdicts, tasks.load("dispatch", scale="nano"), 32)
    ids = []
    for item in episode[1].conversation:
        if isinstance(item, Turn):
            assert list(item.prompt_ids) == ids
        ids += RENDERER.render([item])


@pytest.mark.torch
def test_transformers_reads_the_same_ids(samples):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(weights_path(agent.NAME))
    for sample in samples[:20]:
        messages = []
        for item in sample.transcript.conversation:
            message = item.message if isinstance(item, Turn) else item
            made = [
                {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in message.tool_calls
            ]
            messages.append({"role": message.role, "content": message.content} | ({"tool_calls": made} if made else {}))
        text = theirs.apply_chat_template(messages, tokenize=False)
        assert tuple(theirs(text, add_special_tokens=False)["input_ids"]) == sample.ids
