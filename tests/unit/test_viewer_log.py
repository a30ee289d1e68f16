"""A run as a log for the viewer of Inspect."""

import json

import pytest
from attrs import evolve
from made_run import make_run

from nested_rl import viewer_log
from nested_rl.errors import SettingsError
from nested_rl.rundir import RunDir
from nested_rl.types import Message, ToolCall, Transcript, Turn


@pytest.fixture
def run(tmp_path):
    make_run(tmp_path / "run", steps=2, groups_per_step=2, group_size=3)
    return RunDir.open(tmp_path / "run")


def test_every_episode_is_a_sample_with_its_scores(run, tmp_path):
    out = tmp_path / "logs" / "run.json"
    n = viewer_log.write(run, out)
    log = json.loads(out.read_text(), parse_constant=pytest.fail)
    episodes = list(run.episodes())
    assert n == len(log["samples"]) == len(episodes) == 12
    assert (log["version"], log["status"], log["eval"]["dataset"]["samples"]) == (2, "success", 12)
    counted = [e.reward for e in episodes if not e.masked]
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(sum(counted) / len(counted))
    for sample, episode in zip(log["samples"], episodes, strict=True):
        assert sample["id"] == f"{episode.group:05d}-{episode.member}"
        assert len(sample["messages"]) == len(episode.transcript.conversation)
        if episode.masked:
            assert (sample["scores"], sample["error"]["message"]) == ({}, episode.outcome.error or "masked")
        else:
            assert sample["scores"]["reward"]["value"] == episode.reward
            assert "error" not in sample
        assert [len(problems) for problems in sample["metadata"]["problems"]] == [
            len(v.problems) for v in episode.validations
        ]


def test_calls_and_their_answers_belong_together_also_unread_ones():
    calls = (
        ToolCall(name="list_files"),
        ToolCall(name="", error="no such call"),
        ToolCall(name="submit_job", id="own"),
    )
    said = [
        Message(role="user", content="go"),
        Turn(message=Message(role="assistant", tool_calls=calls)),
        Message(role="tool", content="none", name="list_files"),
        Message(role="tool", content="error", name=""),
        Message(role="tool", content="valid", name="submit_job", tool_call_id="own"),
    ]
    _, turn, *answers = viewer_log._messages(said)
    assert [call["id"] for call in turn["tool_calls"]] == [answer["tool_call_id"] for answer in answers]
    assert turn["tool_calls"][1]["parse_error"] == "no such call"


def test_an_episode_that_failed_before_a_word_was_said_is_told(run):
    episode = evolve(next(run.episodes()), transcript=Transcript(conversation=(), end="infra"), masked=True)
    sample = viewer_log._sample(episode)
    assert (sample["messages"], sample["output"]["choices"], sample["input"]) == ([], [], episode.task.prompt)


def test_what_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / "there.json").write_text("")
    for out, words in ((tmp_path / "log.txt", r"end in \.json"), (tmp_path / "there.json", "exists already")):
        with pytest.raises(SettingsError, match=words):
            viewer_log.write(run, out)
    RunDir.create(tmp_path / "empty", {"steps": 1}).close()
    with pytest.raises(SettingsError, match="no finished episode"):
        viewer_log.write(RunDir.open(tmp_path / "empty"), tmp_path / "x.json")


def test_the_command_says_how_to_look_at_it(run, tmp_path, capsys):
    from nested_rl.cli import main

    assert main(["export", str(run.path), "--format", "inspect", "--out", str(tmp_path / "l" / "a.json")]) == 0
    assert f"12 episodes; to look at them: inspect view --log-dir {tmp_path / 'l'}" in capsys.readouterr().out
