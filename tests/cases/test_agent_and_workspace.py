"""What the agent can reach, learn and fool: nothing outside its folder, nothing of the hidden evaluation, no verdict."""

import json
import os

import pytest
from attrs import evolve
from case_doubles import World, calls

from nested_rl import grpo
from nested_rl.harness.agent import ToolHarness
from nested_rl.harness.workspace import BadPath, Workspace, WorkspaceError
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.jobs.folder import digest, parse
from nested_rl.nano.tokenizer import Tokenizer
from nested_rl.renderers import Qwen3Renderer
from nested_rl.types import Message, Problem, Score, Transcript, Turn, Validation

pytestmark = pytest.mark.cases

REFUSED = Validation(ok=False, problems=(Problem(code="x", where="job.toml", message="not good", brief="not good"),))


def talking(world: World, *turns: Message) -> World:
    """An agent that says these turns in each of its episodes, then hands in for ever."""
    world.harness = ToolHarness(clock=world.clock)

    def say(talk):
        spoken = sum(isinstance(part, Turn) for part in talk)
        return turns[spoken] if spoken < len(turns) else calls("submit_job")

    world.trainer.say = say
    return world


async def test_a43_test_score_steers_search(tmp_path):
    """Everything that an agent saw: its scores are those of the dev split; nothing of the hidden one is in it."""
    world = talking(
        World(tmp_path / "run", steps=1),
        calls("get_baseline_scores"),
        calls("list_files"),
        calls("write_file", path="job.toml", content="steps = 1\n"),
        calls("submit_job"),
        calls("read_file", path="nowhere"),
    )

    async def score(model, eval_set, machine, *, seed=0):
        return Score.of([0.73125] * 4 if eval_set.split == "hidden" else [0.41875] * 4)

    world.scorer.score = score
    verdicts = [REFUSED, Validation(ok=True, base="strong")]
    world.inner.verdict = lambda draft: verdicts[min(len(world.inner.validated) - 1, 1)]
    await world.go()
    for episode in world.files.episodes():
        assert episode.outcome.post.value == 0.73125
        seen = "\n".join(part.content for part in episode.transcript.conversation if isinstance(part, Message))
        assert "0.42" in seen
        assert not any(told in seen for told in ("0.73", "73.1", "0.41875", "secret"))


def test_a44_template_mismatch():
    """The template leaves out earlier thoughts, so a turn may be no continuation: what is trained is what was sampled."""
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
    tokens = Tokenizer.pieces(
        specials, [*map(chr, range(32, 127)), "\n"], [], pad="<|endoftext|>", eos="<|im_end|>", unk="<|endoftext|>"
    )
    renderer = Qwen3Renderer(tokens)
    talk, sampled = [Message(role="user", content="Go.")], []
    for number in range(3):
        prompt = tuple(renderer.render(talk))
        ids = tuple(tokens.encode(f"<think>\nhm {number}\n</think>\n\nI say {number}.<|im_end|>"))
        sampled.append(ids)
        turn = Turn(
            message=renderer.parse(ids),
            prompt_ids=prompt,
            ids=ids,
            logprobs=tuple(-float(i + 1) for i in range(len(ids))),
        )
        talk += [turn, Message(role="user", content=f"And {number}?")]
    data = grpo.datums(Transcript(conversation=tuple(talk), end="stop"), 1.0)
    trained = [t for d in data for t, mine in zip(d.targets, d.sampled, strict=True) if mine]
    logprobs = [p for d in data for p, mine in zip(d.logprobs, d.sampled, strict=True) if mine]
    assert trained == [token for ids in sampled for token in ids]
    assert logprobs == [-float(i + 1) for ids in sampled for i in range(len(ids))]

    first, *_, last = (part for part in talk if isinstance(part, Turn))
    forgetful = evolve(last, prompt_ids=tuple(renderer.render([talk[0], Message(role="user", content="And?")])))
    data = grpo.datums(Transcript(conversation=(first, forgetful), end="stop"), 1.0)
    assert len(data) == 2
    assert [sum(d.sampled) for d in data] == [len(first.ids), len(forgetful.ids)]


async def test_a45_reward_file_forged(tmp_path):
    """An agent writes rewards and results into its folder: they are files of its attempt, and nothing reads them."""
    forged = json.dumps({"reward": 1.0, "post": 1.0, "valid": True})
    names = ("reward.json", "jobs/1/result.json", "score.json", "validation.json")
    world = talking(
        World(tmp_path / "run", steps=1),
        *(calls("write_file", path=name, content=forged) for name in names),
        *(calls("write_file", path=f"../{name}", content=forged) for name in names),
    )
    world.inner.verdict = lambda draft: REFUSED
    await world.go()
    for episode in world.files.episodes():
        assert (episode.reward, episode.outcome.valid, episode.result) == (0.0, False, None)
        assert "reward.json" in world.inner.validated[0]
        refusals = [part for part in episode.transcript.conversation if "'..'" in getattr(part, "content", "")]
        assert len(refusals) == len(names)
    surface = NanoInnerTrainer().surface
    _, problems = parse({"job.toml": "", "environment.py": "", "reward.json": forged}, surface)
    assert ("files.unknown", "reward.json") in {(p.code, p.where) for p in problems}


async def test_a47_verify_tool_is_an_oracle(tmp_path):
    """An agent that asks for nothing but baselines gets the same few two-decimal numbers, for as many turns as it has."""
    world = talking(World(tmp_path / "run", steps=1), *[calls("get_baseline_scores")] * 1000)
    await world.go()
    asked = len(world.scorer.asked)
    for episode in world.files.episodes():
        replies = [p.content for p in episode.transcript.conversation if getattr(p, "role", "") == "tool"]
        assert len(replies) == world.harness.max_turns
        assert len(set(replies)) == 1
        assert "secret" not in replies[0]
    assert asked == 4  # each base on each split, once a run


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "ws").mkdir()
    with Workspace(tmp_path / "ws") as workspace:
        yield workspace


def test_a49_dangling_symlink(workspace, tmp_path):
    (tmp_path / "ws" / "a").symlink_to(tmp_path / "outside_new")
    (tmp_path / "ws" / "folder").symlink_to(tmp_path)
    for path in ("a", "folder/outside_new"):
        with pytest.raises(BadPath):
            workspace.write(path, "x")
        with pytest.raises(WorkspaceError):
            workspace.read(path)
    assert not (tmp_path / "outside_new").exists()
    with pytest.raises(BadPath):
        workspace.files()


OUTSIDE = (
    "../x",
    "/etc/passwd",
    "a/../../x",
    "a\\..\\x",
    "x\0y",
    "~/.ssh/id",
    "file:///etc/passwd",
    "../ws-evil/x",
    "/srv/ws-evil",
    "a/./x",
    "",
    ".",
    "..",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_a50_dot_dot(workspace, tmp_path, path):
    (tmp_path / "ws-evil").mkdir()
    (tmp_path / "ws-evil" / "x").write_text("theirs")
    before = sorted(tmp_path.rglob("*"))
    for use in (workspace.read, lambda p: workspace.write(p, "x"), lambda p: workspace.edit(p, "theirs", "mine")):
        with pytest.raises(BadPath):
            use(path)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "ws-evil" / "x").read_text() == "theirs"


async def test_a54_git_history_leak(tmp_path):
    """A new workspace holds the guide and nothing else, above all nothing of an earlier episode."""
    world = talking(
        World(tmp_path / "run", steps=1, group_size=4),
        calls("list_files"),
        calls("write_file", path="reference.py", content="solved"),
    )
    found, real = [], Workspace.write

    def looking(workspace, path, text):
        found.append(sorted(os.listdir(workspace.root)))  # noqa: PTH208
        real(workspace, path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workspace, "write", looking)
        await world.go()
    assert sorted(found) == [[]] * 4 + [["README.md"]] * 4
    for episode in world.files.episodes():
        listing = next(p.content for p in episode.transcript.conversation if getattr(p, "role", "") == "tool")
        assert "README.md" in listing
        assert "reference" not in listing


async def test_a56_stale_validity(tmp_path):
    """A job that was refused, changed, and has a mark of validity beside it, is looked at again; what runs is those bytes."""
    world = talking(
        World(tmp_path / "run", steps=1),
        calls("write_file", path="environment.py", content="reward = 1\n"),
        calls("submit_job"),
        calls("write_file", path="environment.py", content="reward = 2\n"),
        calls("submit_job"),
        calls("write_file", path="valid.json", content='{"ok": true}'),
        calls("write_file", path="environment.py", content="reward = 3\n"),
    )
    sound = Validation(ok=True, base="strong")
    world.inner.verdict = lambda draft: sound if draft.files["environment.py"] == "reward = 3\n" else REFUSED
    ran = []
    world.inner.ends = lambda job: ran.append(job.spec) or None
    await world.go()
    assert {files["environment.py"] for files in world.inner.validated} == {f"reward = {n}\n" for n in (1, 2, 3)}
    for episode in world.files.episodes():
        assert (episode.outcome.valid, episode.outcome.attempts) == (True, 3)
    for spec in ran:
        assert spec.files["environment.py"] == "reward = 3\n"
        assert spec.digest == digest(spec.files)


def test_a58_unknown_config_key():
    job = '[model]\nbase = "nano-m"\n[training]\nsteps = 10\nlearning_rte = 1e-5\n'
    config, problems = parse({"job.toml": job, "environment.py": "x = 1\n"}, NanoInnerTrainer().surface)
    assert config is None
    told = " ".join(f"{p.message} {p.hint}" for p in problems)
    assert "learning_rte" in told
    assert "learning_rate" in told
