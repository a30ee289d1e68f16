"""A reward that is mended: free while nothing was trained on the old one, another experiment afterwards."""

import attrs
import pytest
from supervised import World

from nested_rl.errors import RewardError, RunMismatch
from nested_rl.replay import replay
from nested_rl.types import Budget


def broken(outcome):
    if outcome.task.id.endswith("-1"):
        return float("nan")
    return 0.25


def mended(outcome):
    return {"half": 0.5, "valid": 0.25 * outcome.valid}


def others(outcome):
    return 0.125


def world(path, reward, **changed):
    made = World(path)
    made.experiment = attrs.evolve(made.experiment, reward=reward, **changed)
    return made


def ended(path):
    first = world(path, broken)
    with pytest.raises(RewardError, match="nan") as error:
        first.run()
    return first, error.value.__notes__[0]


def test_the_function_is_mended_and_the_run_goes_on_with_what_is_there(tmp_path):
    first, note = ended(tmp_path / "run")
    assert "Mend the function, and run the same again to go on" in note
    recorded = {(e.group, e.member) for e in first.files.episodes()}
    assert recorded
    after = world(tmp_path / "run", mended)
    after.run()
    assert after.files.finished
    episodes = list(after.files.episodes())
    assert {e.reward for e in episodes if not e.masked} == {0.75}
    assert {tuple(e.parts.items()) for e in episodes if not e.masked} == {(("half", 0.5), ("valid", 0.25))}
    (paid,) = after.files.events("reward.paid")
    assert paid["episodes"] >= len(recorded)
    done = [event["key"] for event in after.files.events("job.done")]
    assert len(done) == len(set(done))
    sampled = [(e["group"], e["member"]) for e in after.files.events("episode.done")]
    assert not [place for place in recorded if sampled.count(place) > 1]
    report = replay(after.files, mended)
    assert report.same == len(report.changes) > 0
    for told in after.files.evals().values():
        assert {row["reward"] for row in told["rows"]} == {0.75}


def test_one_that_was_only_thought_mended_leaves_nothing_of_either(tmp_path):
    """What is recorded is paid again until it is paid whole, also when the first function comes back."""
    first, _ = ended(tmp_path / "run")
    place = next((e.group, e.member) for e in first.files.episodes())
    count = iter(range(9))

    def half_way(outcome):
        return 0.5 if not next(count) else float("inf")

    with pytest.raises(RewardError, match=r"episodes/\d{5}-\d: .* inf"):
        world(tmp_path / "run", half_way).run()
    assert not list(first.files.events("reward.paid"))
    with pytest.raises(RewardError):
        world(tmp_path / "run", broken).run()
    assert first.files.read_episode(*place).reward == 0.25


def test_once_a_step_is_done_it_is_another_experiment_and_the_refusal_says_what_to_do(tmp_path):
    world(tmp_path / "run", mended).run(1)
    with pytest.raises(RunMismatch, match=r"parts\.reward\.source: was '\w+', now '\w+'") as refused:
        world(tmp_path / "run", others).run()
    for words in ("another `out`", "`--fresh`", f"nested-rl replay {tmp_path / 'run'} --reward", "steps done: 1"):
        assert words in str(refused.value)
    assert next(e.reward for e in World(tmp_path / "run").files.episodes() if not e.masked) == 0.75


def test_the_note_of_a_late_reward_error_does_not_promise_what_is_refused(tmp_path):
    calls = iter(range(1000))

    def late(outcome):
        return 1.0 if next(calls) < 12 else float("nan")

    with pytest.raises(RewardError) as error:
        world(tmp_path / "run", late).run(9)
    (note,) = error.value.__notes__
    assert "With a mended function it is another experiment" in note
    assert "nested-rl replay" in note


def test_nothing_else_may_change_with_it(tmp_path):
    first, _ = ended(tmp_path / "run")
    with pytest.raises(RunMismatch, match="job_seeds") as refused:
        world(tmp_path / "run", mended).experiment.run(
            steps=2, groups_per_step=2, group_size=2, eval_every=1, job_seeds=7, out=tmp_path / "run", quiet=True
        )
    assert "replay" not in str(refused.value)
    assert not list(first.files.events("reward.changed"))
    world(tmp_path / "run", mended, budget=Budget(usd=5.0)).run()  # what may always change still may
