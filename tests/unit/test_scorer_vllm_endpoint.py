"""VLLMScorer with the server of somebody else, the reading of its answers, and what a baseline is measured under."""

import attrs
import pytest
from openai_server import DROP, Server, answer
from vllm_play import Echo, evaluation

from nested_rl import parts
from nested_rl.baselines import Baselines
from nested_rl.describe import describe
from nested_rl.errors import InfraFault, SettingsError
from nested_rl.rundir import RunDir
from nested_rl.scorers import VLLMScorer, vllm_answers
from nested_rl.types import Checkpoint, Score, Task

GREEDY = attrs.evolve(evaluation(n=3), baseline_sampling=evaluation().sampling)
TASK = Task(id="echo-1", family="echo", difficulty=1)


def echo(body):
    said = answer(body["messages"][0]["content"])
    said["usage"]["completion_tokens"] = 2
    return said


def scorer(server, **settings):
    return VLLMScorer([Echo()], endpoint=server.url, retry_s=0.2, wall_s=10.0, **settings)


async def test_a_base_is_asked_by_name_or_as_what_it_is_called_there_and_a_checkpoint_by_its_path(monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    with Server(echo) as server:
        asked = scorer(server, key_env="MY_KEY")
        score = await asked.score("small", GREEDY, None)
        await scorer(server, model="large", key_env="MY_KEY").score("small", GREEDY, None)
        await asked.score(Checkpoint(path="mine-7", base="small"), GREEDY, None)
    assert (score.value, score.n, score.tokens, score.truncated) == (1.0, 3, 6, 0)
    assert [body["model"] for body in server.seen] == ["small"] * 3 + ["large"] * 3 + ["mine-7"] * 3
    assert set(server.keys) == {"Bearer sk-mine"}
    assert set(server.seen[0]) == {"model", "messages", "max_tokens", "temperature", "top_p"}  # what every server knows
    assert "sk-mine" not in str(asked.settings())


async def test_what_a_server_does_not_have_is_told_and_what_it_cannot_do_now_is_a_fault():
    missing = (404, {"error": {"message": "The model `small` does not exist"}}, {})
    words = r"no model 'small'; there are .*large"
    with Server(missing) as server, pytest.raises(SettingsError, match=words):
        await scorer(server).score("small", GREEDY, None)
    for trouble in ((503, {"error": "busy"}, {}), DROP):
        with Server(trouble) as server, pytest.raises(InfraFault, match="tried"):
            await scorer(server).score("small", GREEDY, None)
    with pytest.raises(SettingsError, match="https://HOST/v1"):
        VLLMScorer(endpoint="ftp://x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"choices": []}, "0 completions where 2"),
        ({"choices": [{"index": 0}, {"index": 0}]}, "2 completions where 2"),
        ({"choices": None}, "0 completions"),
        ({"usage": None}, "how many tokens"),
        ({"usage": {"completion_tokens": -1}}, "how many tokens"),
        ({"usage": {"completion_tokens": True}}, "how many tokens"),
        ({"finish_reason": "abort"}, "ended with 'abort'"),
        ({"finish_reason": None}, "ended with None"),
        ({"message": {"content": 7}}, "without text"),
        ({"message": None}, "without text"),
    ],
)
def test_half_an_answer_is_none(change, words):
    rows = [{"index": i, "message": {"content": f"{i}"}, "finish_reason": "stop"} for i in (1, 0)]
    whole = {"choices": rows, "usage": {"completion_tokens": 5}}
    assert vllm_answers.read(whole, 2).texts == ("0", "1")
    if change.keys() & whole.keys():
        whole |= change
    else:
        rows[1] |= change
    with pytest.raises(InfraFault, match=f"half an answer: .*{words}"):
        vllm_answers.read(whole, 2)


def test_a_run_file_can_name_it():
    built = parts.build("scorer", {"name": "vllm", "engine": {"dtype": "float32", "extra_args": ["--seed", "1"]}})
    assert isinstance(built, VLLMScorer)
    assert built.settings()["engine"]["extra_args"] == ("--seed", "1")
    assert describe(built) == describe(VLLMScorer(engine={"dtype": "float32", "extra_args": ("--seed", "1")}))
    assert describe(built) != describe(VLLMScorer(engine={"dtype": "float32"}))


def test_an_empty_completion_is_an_answer():
    row = {"index": 0, "message": {"content": None}, "finish_reason": "stop"}
    assert vllm_answers.read({"choices": [row], "usage": {"completion_tokens": 1}}, 1).texts == ("",)


class Measured(VLLMScorer):
    asked = 0

    async def score(self, model, eval_set, machine, *, seed=0):
        self.asked += 1
        return Score.of([1.0, 0.0])


class Compute:
    def machine(self, need):
        return self

    async def __aenter__(self):
        return None

    async def __aexit__(self, *exc):
        return None


async def test_baselines_are_of_one_engine(tmp_path, monkeypatch):
    monkeypatch.setattr("nested_rl.soundness.check", lambda *_: None)  # Echo is no chain of operations
    run = RunDir.create(tmp_path / "run", {})

    def baselines(**engine):
        measured = Measured([Echo()], engine=engine)
        return measured, Baselines(run, [Echo()], bases=["a", "b"], scorer=measured, compute=Compute(), n=2)

    first, known = baselines(dtype="float32")
    await known.of(TASK)
    assert first.asked == 4
    second, known = baselines(dtype="float32", python="/another/python")
    await known.of(TASK)
    assert second.asked == 0
    with pytest.raises(SettingsError, match="has changed since this run measured its baselines"):
        await baselines(dtype="bfloat16")[1].of(TASK)
