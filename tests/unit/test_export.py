"""Data out: a table of episodes, and successful transcripts as chats that others can train on."""

import importlib.util
import json
import sys
from types import ModuleType

import attrs
import pytest
from made_run import make_run

from nested_rl import cli, export
from nested_rl.errors import MissingExtra, RunDirError, SettingsError
from nested_rl.export import chat, rows, write
from nested_rl.harness.tools import BRIEF_SCHEMAS, SCHEMAS
from nested_rl.run import Run
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import Message, ToolCall, Transcript, Turn


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four of six steps; some episodes are masked, many not valid."""
    place = tmp_path_factory.mktemp("export") / "pilot"
    return RunDir.open(make_run(place, steps=6, done=4, groups_per_step=3, group_size=4, seed=6, evals=False).path)


@pytest.fixture
def told(capsys):
    def call(*argv):
        code = cli.main(["export", *map(str, argv)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def turn(*calls, content="", **options):
    return Turn(message=Message(role="assistant", content=content, tool_calls=calls), **options)


def answer(text, **options):
    return Message(role="tool", content=text, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fits_the_format(messages):
    """What OpenAI-compatible servers and chat templates ask of a conversation."""
    open_calls = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
            continue
        assert open_calls == []
        assert message["role"] in ("system", "user", "assistant")
        for call in message.get("tool_calls", ()):
            assert call["type"] == "function"
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            open_calls.append(call["id"])
    assert open_calls == []
    return True


# ---------------------------------------------------------------- the table


def test_one_flat_row_an_episode(run):
    episodes, found = list(run.episodes()), list(rows(run))
    assert len(found) == len(episodes)
    for row, episode in zip(found, episodes, strict=True):
        assert (row["group"], row["member"]) == (episode.group, episode.member)
        assert row["reward"] == (None if episode.masked else episode.reward)
        assert row["post"] == (episode.outcome.post.value if episode.outcome.post else None)
        assert row["step"] == (episode.group // 3 if episode.group < 12 else None)
        assert all(row[f"reward/{name}"] == value for name, value in episode.parts.items())
        json.dumps(row, allow_nan=False)
        assert all(value is None or isinstance(value, str | int | float | bool) for value in row.values())
    assert {row["step"] for row in found} == {0, 1, 2, 3, None}
    assert any(row["problems"] for row in found)
    assert any(row["masked"] for row in found)


def test_to_pandas_gives_the_rows(run, monkeypatch):
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda given: ("frame", given)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert Run(run.path).to_pandas() == ("frame", list(rows(run)))


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not installed")
def test_to_pandas_for_real(run):
    frame = Run(run.path).to_pandas()
    assert len(frame) == sum(1 for _ in run.episodes())
    assert frame.groupby("family").reward.mean().notna().all()


def test_without_pandas_it_names_the_extra(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"pip install 'nested-rl\[pandas\]'"):
        Run(run.path).to_pandas()


# ---------------------------------------------------------------- chats


def test_only_valid_episodes_with_enough_reward(run, tmp_path):
    threshold = 0.5
    told = write(run, tmp_path / "chats.jsonl", min_reward=threshold)
    chosen = [e for e in run.episodes() if not e.masked and e.outcome.valid and e.reward >= threshold]
    found = lines(told.path)
    assert [row["episode"] for row in found] == [f"{e.group:05d}-{e.member}" for e in chosen]
    assert [row["reward"] for row in found] == [e.reward for e in chosen]
    assert told.chats == len(chosen)
    assert told.chats + sum(told.left_out.values()) == sum(1 for _ in run.episodes())
    assert all(fits_the_format(row["messages"]) for row in found)
    assert all(list(row) == list(export.FIELDS) for row in found)
    assert all(row["tools"] == [dict(schema) for schema in BRIEF_SCHEMAS] for row in found)


def test_a_large_agent_had_one_tool_more(run, tmp_path, monkeypatch):
    said = [Message(role="system", content="You write jobs."), Message(role="user", content="Go.")]
    monkeypatch.setattr(export, "chat", lambda _, chat=export.chat: chat(said))
    assert lines(write(run, tmp_path / "chats.jsonl").path)[0]["tools"] == [dict(schema) for schema in SCHEMAS]


def test_neither_the_secret_nor_scores_of_items_leave_the_run(run, tmp_path):
    write(run, tmp_path / "data", kind="datasets")
    text = "".join(p.read_text(encoding="utf-8") for p in (tmp_path / "data").rglob("*") if p.is_file())
    assert run.salt not in text
    assert '"items": [' not in text
    assert str(run.path.parent) not in text


def test_datasets_is_a_folder_with_a_card(run, tmp_path):
    told = write(run, tmp_path / "deep" / "data", kind="datasets")
    card = (told.path / "README.md").read_text(encoding="utf-8")
    data = told.path / card.partition("path: ")[2].splitlines()[0]
    assert len(lines(data)) == told.chats
    assert json.loads(lines(data)[0]["tools"]) == list(BRIEF_SCHEMAS)
    assert f"{told.chats} conversations" in card
    assert all(f"| `{name}` |" in card for name in lines(data)[0])
    assert sorted(p.name for p in told.path.rglob("*")) == ["README.md", "data", "train.jsonl"]
    assert [p.name for p in told.path.parent.iterdir()] == ["data"]


def test_tools_of_a_harness_of_ones_own_are_not_made_up(tmp_path):
    made = make_run(tmp_path / "run", steps=1, groups_per_step=1, seed=1, evals=False)
    toml = made.path / "run.toml"
    write_atomic(toml, toml.read_bytes() + b'\n[parts.harness]\nname = "mine.Harness"\n')
    told = write(made, tmp_path / "data", kind="datasets")
    assert "tools" not in lines(told.path / "data" / "train.jsonl")[0]
    assert "`tools`" not in (told.path / "README.md").read_text(encoding="utf-8")


def test_text_that_is_no_text_is_still_written(tmp_path):
    made = make_run(tmp_path / "run", steps=1, groups_per_step=1, seed=1, evals=False)
    episode = next(e for e in made.episodes() if e.outcome.valid)
    odd = (Message(role="user", content="bad \udcff byte, good ä"), *episode.transcript.conversation)
    made.write_episode(attrs.evolve(episode, transcript=Transcript(conversation=odd, end="submitted")), files={})
    found = lines(write(made, tmp_path / "out.jsonl").path)
    assert "bad ? byte, good ä" in {row["messages"][0]["content"] for row in found}


def test_calls_get_ids_and_their_answers():
    said = chat(
        [
            Message(role="system", content="s"),
            turn(ToolCall(name="read_file", arguments={"path": "ä"}), ToolCall(name="list_files"), content="I look"),
            answer("one"),
            answer("two"),
            turn(content="done"),
        ]
    )
    assert fits_the_format(said)
    assert said[1]["content"] == "I look"
    assert [m.get("tool_call_id") for m in said] == [None, None, "call_0", "call_1", None]
    assert json.loads(said[1]["tool_calls"][0]["function"]["arguments"]) == {"path": "ä"}


def test_answers_find_their_calls_by_id():
    calls = (ToolCall(name="a", id="x"), ToolCall(name="b", id="y"))
    said = chat([turn(*calls), answer("to b", tool_call_id="y"), answer("to a", tool_call_id="x")])
    assert fits_the_format(said)
    assert [(m["name"], m["content"]) for m in said[1:]] == [("a", "to a"), ("b", "to b")]


def test_calls_after_the_accepted_submission_are_left_away():
    said = chat([turn(ToolCall(name="submit_job"), ToolCall(name="list_files")), answer("valid")])
    assert [call["function"]["name"] for call in said[0]["tool_calls"]] == ["submit_job"]
    assert fits_the_format(said)


@pytest.mark.parametrize(
    "talk",
    [
        [turn(ToolCall(name="", error="not JSON")), answer("the call could not be read")],
        [turn(content="no call"), answer("an answer to nothing")],
        [turn(ToolCall(name="a", id="x")), answer("?", tool_call_id="z")],
    ],
)
def test_what_nobody_should_learn_is_left_out(talk):
    assert chat(talk) is None


# ---------------------------------------------------------------- the command


def test_the_command_says_what_it_wrote_and_what_not(told, run, tmp_path):
    code, out, err = told(run.path, "--out", tmp_path / "chats.jsonl", "--min-reward", 0.5)
    assert (code, err) == (0, "")
    n = len(lines(tmp_path / "chats.jsonl"))
    assert out.startswith(f"{tmp_path / 'chats.jsonl'}: {n} chats (left out: ")
    assert "without a valid job" in out
    assert told(run.path, "--format", "datasets", "--out", tmp_path / "data")[0] == 0
    assert (tmp_path / "data" / "README.md").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "there"], "there exists already"),
        (["--out", "new", "--min-reward", "99"], "no chat to export"),
        (["--out", "new", "--min-reward", "nan"], "must be a finite number"),
        (["--out", "new", "--format", "csv"], "sft"),
        ([], "--out"),
    ],
)
def test_wrong_use_is_one_sentence_and_leaves_nothing_behind(told, run, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("mine")
    code, out, err = told(run.path, *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("there", "mine")]


def test_a_path_that_is_no_run(told, tmp_path):
    code, _, err = told(tmp_path, "--out", tmp_path / "x")
    assert code == 2
    assert "not a run directory" in err


def test_a_place_that_cannot_be_written_to(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="out"):
        write(run, tmp_path / "file" / "out")
    with pytest.raises(SettingsError, match="no episode is finished yet"):
        write(RunDir.create(tmp_path / "empty", {"steps": 1}), tmp_path / "out")
