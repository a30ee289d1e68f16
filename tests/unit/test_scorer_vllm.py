"""VLLMScorer against a stand-in for vLLM, started on a real machine: what goes out, what is made of it, and every way to fail."""

import asyncio
import sys

import attrs
import pytest
import pytest_asyncio
from vllm_play import Echo, Standin, evaluation

from nested_rl.compute.local import LocalCompute
from nested_rl.errors import InfraFault, MachineLost, SettingsError, UnknownName
from nested_rl.scorers import VLLMEngine, VLLMScorer
from nested_rl.testing import ScorerSuite
from nested_rl.testing.machine import runs
from nested_rl.types import Need

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine():
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as lent:
        yield lent
    await compute.close()


@pytest_asyncio.fixture(loop_scope="module")
async def standin(tmp_path):
    """Makes stand-ins and ends them."""
    made = []

    def make(fault="none", **settings):
        made.append(Standin(tmp_path / f"{len(made)}.log", fault, **settings))
        return made[-1]

    yield make
    for one in made:
        await one.scorer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def steady(tmp_path_factory):
    one = Standin(tmp_path_factory.mktemp("steady") / "log")
    yield one.scorer
    await one.scorer.close()


class TestVLLMScorer(ScorerSuite):
    @pytest.fixture(autouse=True)
    def offline(self, monkeypatch, tmp_path):
        """A base that is nowhere is looked for on the Hub."""
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv("NESTED_RL_BASES_LOCK", str(tmp_path / "bases.lock.json"))

    @pytest.fixture
    def scorer(self, steady):
        return steady

    @pytest.fixture
    def machine(self, machine):
        return machine

    @pytest.fixture
    def base(self):
        return "nano-s"

    @pytest.fixture
    def eval_set(self):
        return evaluation()


TestVLLMScorer = pytest.mark.asyncio(loop_scope="module")(TestVLLMScorer)


async def test_prompts_go_out_with_seeds_of_their_own_and_grades_are_in_item_order(machine, standin):
    one = standin()
    score = await one.scorer.score("nano-s", evaluation(samples=2), machine, seed=3)
    bodies = one.notes("body")[1:]
    assert sorted(body["messages"][0]["content"] for body in bodies) == sorted(i.prompt for i in evaluation().items)
    assert len({body["seed"] for body in bodies}) == 12
    for body in bodies:
        assert {name: body[name] for name in ("n", "temperature", "max_tokens", "top_p", "top_k", "model")} == {
            "n": 2,
            "temperature": 1.0,
            "max_tokens": 8,
            "top_p": 1.0,
            "top_k": -1,
            "model": "base",
        }
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
    only_two = tuple(
        attrs.evolve(item, answer=item.answer if i in (2, 7) else "x") for i, item in enumerate(evaluation().items)
    )
    greedy = attrs.evolve(evaluation(), items=only_two, baseline_sampling=evaluation().sampling)
    ordered = await one.scorer.score("nano-s", greedy, machine)
    assert [i for i, value in enumerate(ordered.items) if value] == [2, 7]
    assert ordered.stderr == pytest.approx((2 / 12 * 10 / 12 / 11) ** 0.5)
    assert (score.tokens, score.n) == (12 * 2 * 3, 12)
    assert not any("seed" in body for body in one.notes("body")[-12:])


async def test_a_cut_completion_is_wrong_and_counted(machine, standin):
    greedy = attrs.evolve(evaluation(n=14), baseline_sampling=evaluation().sampling)
    score = await standin("cut").scorer.score("nano-s", greedy, machine)
    assert (score.truncated, [i for i, value in enumerate(score.items) if not value]) == (2, [3, 13])


async def test_the_server_starts_clean_with_its_key_in_the_environment_alone(machine, standin, monkeypatch):
    monkeypatch.setenv("PROVIDER_API_KEY", "sk-secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    one = standin()
    await one.scorer.score("nano-s", evaluation(), machine)
    (start,) = one.notes("pid")
    key = start["environment"].pop("VLLM_API_KEY")
    assert len(key) > 40
    assert key not in str(start)
    assert "sk-secret" not in str(start)
    assert "PYTHONPATH" not in start["environment"]
    assert start["environment"]["HOME"] == start["environment"]["TMPDIR"] == start["folder"]
    assert start["folder"].startswith(machine.root)
    expected = {"HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": "", "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
    assert expected.items() <= start["environment"].items()
    assert {"--no-trust-remote-code", "safetensors", "127.0.0.1"} <= set(start["argv"])
    assert start["argv"][start["argv"].index("--max-model-len") + 1] == "128"  # the model's own


async def test_one_server_answers_until_another_model_is_asked_for_or_the_lease_ends(standin):
    one = standin()
    compute = LocalCompute(max_machines=1, python=sys.executable)
    async with compute.machine(Need()) as first:
        for base in ("nano-s", "nano-s", "nano-m"):
            await one.scorer.score(base, evaluation(), first)
        pids = [str(start["pid"]) for start in one.notes("pid")]
        assert len(pids) == 2
        assert [await runs(first, pid) for pid in pids] == [False, True]
    async with compute.machine(Need()) as again:
        assert again is first
        assert not await runs(again, pids[1])
        await one.scorer.score("nano-m", evaluation(), again)
        assert len(one.notes("pid")) == 3
    await one.scorer.close()
    await compute.close()


@pytest.mark.parametrize(
    ("fault", "fault_type", "words"),
    [
        ("crash", InfraFault, "died with status 1; its last words: no such device"),
        ("names", InfraFault, r"serves \['base-2'\], not \['base'\]"),
        ("open", InfraFault, "is not the server that was started: it says 200 without its key"),
        ("foreign", InfraFault, "cannot be trusted: another process listens on its port"),
        ("error", InfraFault, "500 .engine trouble.; tried"),
        ("half", InfraFault, "half an answer: 3 completions where 4 were asked for"),
        ("die", MachineLost, "died with status 3; its last words: out of memory"),
    ],
)
async def test_a_server_that_fails_is_our_fault_and_nothing_of_it_is_left(machine, standin, fault, fault_type, words):
    one = standin(fault)
    with pytest.raises(fault_type, match=words) as caught:
        await one.scorer.score("nano-s", evaluation(), machine)
    assert type(caught.value) is fault_type
    (start,) = one.notes("pid")
    assert not await runs(machine, str(start["pid"]))
    (key,) = (start["environment"]["VLLM_API_KEY"],)
    assert key not in str(caught.value)


@pytest.mark.parametrize(("fault", "words"), [("late", "loading weights"), ("ill", "not ready after 1 s")])
async def test_a_server_that_does_not_get_ready_is_ended(machine, standin, fault, words):
    one = standin(fault, start_s=1.0)
    with pytest.raises(InfraFault, match=words):
        await one.scorer.score("nano-s", evaluation(), machine)
    (start,) = one.notes("pid")
    assert not await runs(machine, str(start["pid"]))


async def test_a_server_that_stalls_is_ended_and_the_next_score_starts_another(machine, standin):
    one = standin("stall", wall_s=0.5)
    for _ in range(2):
        with pytest.raises(InfraFault, match="12 prompts were not answered within"):
            await one.scorer.score("nano-s", evaluation(), machine)
    pids = {str(start["pid"]) for start in one.notes("pid")}
    assert len(pids) == 2
    assert [await runs(machine, pid) for pid in pids] == [False, False]


async def test_called_off_it_leaves_nothing_running(machine, standin):
    one = standin("stall")
    scoring = asyncio.ensure_future(one.scorer.score("nano-s", evaluation(), machine))
    while len(one.notes("body")) < 2:  # noqa: ASYNC110 - another process is waited for
        await asyncio.sleep(0.01)
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    (start,) = one.notes("pid")
    assert not await runs(machine, str(start["pid"]))


async def test_a_busy_server_is_asked_again(machine, standin):
    one = standin("flaky", retry_s=20.0)
    greedy = attrs.evolve(evaluation(n=4), baseline_sampling=evaluation().sampling)
    score = await one.scorer.score("nano-s", greedy, machine)
    assert score.value == 1.0
    assert len(one.notes("body")) > 1 + 4


async def test_a_machine_without_vllm_says_so(machine):
    scorer = VLLMScorer([Echo()], engine={"python": "/usr/bin/false"})
    with pytest.raises(InfraFault, match=r"has ended|no longer reads"):
        await scorer.score("nano-s", evaluation(), machine)
    missing = VLLMScorer([Echo()], engine={"python": "/no/such/python"})
    with pytest.raises(MachineLost, match="cannot be started"):
        await missing.score("nano-s", evaluation(), machine)


async def test_what_cannot_work_is_refused_in_words():
    with pytest.raises(UnknownName, match="max_num_seqs"):
        VLLMScorer(engine={"max_num_seq": 3})
    with pytest.raises(SettingsError, match="gpu_memory_utilization"):
        VLLMScorer(engine={"gpu_memory_utilization": 1.5})
    with pytest.raises(SettingsError, match="not both"):
        VLLMScorer(endpoint="http://127.0.0.1:1/v1", engine=VLLMEngine())
    with pytest.raises(SettingsError, match="endpoint"):
        VLLMScorer(model="large")
    with pytest.raises(SettingsError, match="start_s"):
        VLLMScorer(start_s=0)
    with pytest.raises(UnknownName, match="calc_chain"):
        await VLLMScorer().score("nano-s", attrs.evolve(evaluation(), family="calc_chan"), None)
