"""Sampling: what a turn holds, and groups in lockstep."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from nano_play import TOKENIZER, ask, logprobs, play

from nested_rl import grpo
from nested_rl.errors import SettingsError
from nested_rl.interfaces import Lockstep
from nested_rl.trainers.nano import NanoTrainer
from nested_rl.types import Transcript

# ---------------------------------------------------------------- the policy


async def test_a_turn_holds_what_was_sampled(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    turn = await policy.sample([ask("abc")], tools=(), max_tokens=9, seed=3)
    assert turn.prompt_ids == tuple(TOKENIZER.encode("<obs>abc<end>"))
    assert 1 <= len(turn.ids) == len(turn.logprobs) <= 9
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens) == (3, len(turn.ids))
    assert turn == await policy.sample([ask("abc")], tools=(), max_tokens=9, seed=3)
    assert turn.ids != (await policy.sample([ask("abc")], tools=(), max_tokens=9, seed=4)).ids
    said = Transcript(conversation=(turn,), end="stop")
    assert np.allclose(logprobs(policy, said), turn.logprobs, atol=1e-5)
    assert policy.context_tokens == 48


async def test_sampled_turns_are_never_rendered_again(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    said = await play(policy, 5)
    first, second = said.turns
    assert second.prompt_ids == (*first.prompt_ids, *first.ids, *TOKENIZER.encode("<obs>hg<end>"))
    (datum,) = grpo.datums(said, 1.0)
    assert datum.trained == len(first.ids) + len(second.ids)


async def test_stops_are_told_apart(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    turns = [await policy.sample([ask()], tools=(), max_tokens=6, seed=i) for i in range(150)]
    stops = {turn.stop for turn in turns}
    assert stops == {"stop", "length", "malformed"}
    for turn in turns:
        ended = turn.ids[-1] in policy._renderer.stop_ids
        assert (turn.stop == "length") == (not ended)
        if turn.stop == "malformed":
            assert turn.message.tool_calls[0].error
    assert {len(t.ids) for t in turns if t.stop == "length"} == {6}


async def test_a_full_context_gives_an_empty_turn(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    for length in (46, 47, 80):  # with <obs> and <end>: 48, 49 and 82 tokens
        turn = await policy.sample([ask("a" * length)], tools=(), max_tokens=9, seed=1)
        assert (turn.ids, turn.logprobs, turn.stop) == ((), (), "length")
    turn = await policy.sample([ask("a" * 45)], tools=(), max_tokens=9, seed=1)
    assert len(turn.ids) == 1
    with pytest.raises(SettingsError, match="empty conversation"):
        await policy.sample([], tools=(), max_tokens=9, seed=1)


# ---------------------------------------------------------------- lockstep


async def lockstep(policy, order, n=5):
    """Members of a group, started in `order`, of different lengths, each with a wait of its own before every turn."""
    assert isinstance(policy, Lockstep)
    seats = policy.seats(n)
    waits = np.random.default_rng(order).integers(0, 4, (n, 4))

    async def member(i):
        for _ in range(int(waits[i, 0])):
            await asyncio.sleep(0)
        said = await play(seats[i], i, turns=1 + i % 3, text="abcdefgh"[: i + 1])
        for _ in range(int(waits[i, 1])):
            await asyncio.sleep(0)
        seats[i].close()
        return said

    tasks = {i: asyncio.create_task(member(i)) for i in np.random.default_rng(order).permutation(n).tolist()}
    return [await tasks[i] for i in range(n)]


async def test_arrival_order_changes_no_bit(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    first = await lockstep(policy, 0)
    for order in range(1, 6):
        assert await lockstep(policy, order) == first


async def test_a_batch_waits_for_every_open_seat(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    sizes = []
    run = policy.run
    policy.run = lambda requests: sizes.append([r.seed for r in requests]) or run(requests)
    seats = policy.seats(3)

    def start(i):
        return asyncio.create_task(seats[i].sample([ask()], tools=(), max_tokens=3, seed=i))

    waiting = [start(2), start(0)]
    await asyncio.sleep(0.02)
    assert sizes == []
    waiting.append(start(1))
    await asyncio.gather(*waiting)
    assert sizes == [[0, 1, 2]]
    seats[1].close()
    await asyncio.gather(start(2), start(0))
    assert sizes[1:] == [[0, 2]]
    seats[0].close()
    await start(2)
    assert sizes[2:] == [[2]]
    with pytest.raises(SettingsError, match="seat 0 is closed"):
        await start(0)


async def test_closing_the_last_one_missing_starts_the_batch(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    seats = policy.seats(2)
    waiting = asyncio.create_task(seats[0].sample([ask()], tools=(), max_tokens=3, seed=1))
    await asyncio.sleep(0)
    seats[1].close()
    seats[1].close()  # twice is once
    turn = await asyncio.wait_for(waiting, 10)
    assert turn.ids


async def test_a_cancelled_member_does_not_stop_the_others(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    seats = policy.seats(3)

    def start(i):
        return asyncio.create_task(seats[i].sample([ask()], tools=(), max_tokens=3, seed=i))

    # while it waits
    waiting = [start(0), start(1)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    turns = await asyncio.wait_for(asyncio.gather(waiting[1], start(2)), 10)
    assert all(t.ids for t in turns)
    # while its batch runs
    both = [start(1), start(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    both[0].cancel()
    assert (await asyncio.wait_for(both[1], 10)).ids
    assert (await asyncio.wait_for(start(2), 10)).ids


async def test_a_batch_that_fails_fails_for_everybody(model_folder):
    policy = await NanoTrainer(model_folder).policy()

    def run(requests):
        raise RuntimeError("no memory")

    policy.run = run
    seats = policy.seats(2)
    both = await asyncio.gather(
        *(s.sample([ask()], tools=(), max_tokens=3, seed=1) for s in seats), return_exceptions=True
    )
    assert [str(e) for e in both] == ["no memory"] * 2


async def test_a_seat_takes_one_turn_at_a_time(model_folder):
    policy = await NanoTrainer(model_folder).policy()
    seats = policy.seats(2)
    waiting = asyncio.create_task(seats[0].sample([ask()], tools=(), max_tokens=3, seed=1))
    await asyncio.sleep(0)
    with pytest.raises(SettingsError, match="one turn at a time"):
        await seats[0].sample([ask()], tools=(), max_tokens=3, seed=1)
    waiting.cancel()
    with pytest.raises(SettingsError, match="at least one seat"):
        policy.seats(0)
