"""Publishing: what is prepared, what the card says, and that nothing leaves without being asked for twice."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from made_run import made_eval, make_run

from nested_rl import cli
from nested_rl.errors import MissingExtra, NestedRLError, SettingsError
from nested_rl.model_card import card
from nested_rl.publish import prepare, ready, upload
from nested_rl.rundir import RunDir, write_atomic

BASE = "nano-agent"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of five steps, with evaluations."""
    return make_run(tmp_path_factory.mktemp("made") / "pilot", steps=5, groups_per_step=1, group_size=2).path


def with_adapters(made, path, *, base=BASE):
    """A copy of it whose checkpoints hold adapters."""
    shutil.copytree(made, path)
    for version in range(6):
        folder = path / "checkpoints" / f"{version:05d}" / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 8}))
        (folder / "adapter_model.safetensors").write_bytes(b"weights of %d" % version)
    return RunDir.open(path)


@pytest.fixture
def run(made, tmp_path):
    return with_adapters(made, tmp_path / "pilot")


@pytest.fixture
def hub(monkeypatch):
    """A double of huggingface_hub that keeps what it is sent."""
    sent = []

    class HfApi:
        def create_repo(self, repo, *, private, exist_ok):
            sent.append(("repo", repo, private))

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            if repo_id == "me/refused":
                raise ValueError("403 Forbidden for hf_abcdefghijklmnopqrstuvwxyz0123")
            sent.append(("folder", repo_id, folder_path, commit_message))
            return f"https://hub/{repo_id}"

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=HfApi))
    return sent


async def test_a_folder_has_adapter_and_card(run, tmp_path):
    prepared = await prepare(run, tmp_path / "out", which="3")
    assert set(prepared.files) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == b"weights of 3"
    assert prepared.base == BASE
    with pytest.raises(SettingsError, match="exists already"):
        await prepare(run, tmp_path / "out")


async def test_the_base_of_a_local_folder_is_its_name_alone(made, tmp_path):
    run = with_adapters(made, tmp_path / "pilot", base=str(tmp_path / "secret-place" / "my-model"))
    prepared = await prepare(run, tmp_path / "out")
    assert prepared.base == "my-model"
    for file in ("README.md", "adapter_config.json"):
        assert "secret-place" not in (tmp_path / "out" / file).read_text()


def test_the_card_has_base_steps_intervals_cost_and_version(run):
    told = card(run, 5, BASE)
    assert told.startswith("---\nbase_model: nano-agent\nlibrary_name: peft\n")
    assert "| version | 5 of 5 updates done |" in told
    (row,) = (line for line in told.splitlines() if line.startswith("| triage |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == ["yes", "48"]
    reward, low = float(cells[3].split()[0]), float(cells[3].split("[")[1].split(",")[0])
    assert low < reward
    assert cells[5].startswith("+0.")
    assert (
        "The run's ledger has $0.10 in all (job $0.07, update $0.03)." in told
        or "in all (job $0.08, update $0.03)" in told
    )
    assert f"nested_rl {run.spec.get('nested_rl', 'of an unknown version')}" in told


def test_a_version_without_an_evaluation_says_so(run):
    assert "None: no evaluation of version 3 on test tasks was made" in card(run, 3, BASE)


def test_the_card_of_a_model_behind_an_api_tells_its_tokens(run):
    row = {**run.metrics()[-1], "update/prices_known": 0.0}
    row |= {"update/used_prefill_tokens": 1200.0, "update/used_sample_tokens": 34.0, "update/used_train_tokens": 5.0}
    run.metrics_log.append(row)
    run.close()
    told = card(run, 5, BASE)
    assert "prefill 1,200, sample 34, train 5" in told
    assert "No prices were given for them" in told


async def test_a_run_without_an_adapter_is_refused_and_nothing_is_left(made, tmp_path):
    run = RunDir.open(made)
    with pytest.raises(SettingsError, match="trained no adapter"):
        await prepare(run, tmp_path / "out" / "adapter")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_uploads_nothing_by_default(run, hub, capsys):
    assert cli.main(["publish", str(run.path), "--repo", "me/agent"]) == 0
    told = capsys.readouterr().out
    assert "nothing was uploaded" in told
    assert "add --repo me/agent --yes" in told
    assert "adapter_model.safetensors  12 bytes" in told
    assert hub == []


def test_with_yes_what_was_looked_at_is_sent_and_is_private(run, hub, capsys):
    cli.main(["publish", str(run.path), "--repo", "me/agent"])
    readme = run.path / "adapters" / "v00005" / "README.md"
    readme.write_text(readme.read_text() + "\nMy own words.\n")
    assert cli.main(["publish", str(run.path), "--repo", "me/agent", "--yes"]) == 0
    assert hub[0] == ("repo", "me/agent", True)
    assert hub[1][2] == str(readme.parent)
    assert "My own words." in readme.read_text()
    assert "https://hub/me/agent" in capsys.readouterr().out
    assert cli.main(["publish", str(run.path), "--repo", "me/agent", "--yes", "--public"]) == 0
    assert hub[2] == ("repo", "me/agent", False)


@pytest.mark.parametrize(("options", "told"), [(["--yes"], "--repo"), (["--repo", "agent"], "OWNER/NAME")], ids=str)
def test_wrong_use_is_told(run, hub, capsys, options, told):
    assert cli.main(["publish", str(run.path), *options]) == 2
    assert told in capsys.readouterr().err
    assert hub == []


@pytest.mark.parametrize(("which", "version"), [("2", 2), ("initial", 0), ("best", 5)])
def test_the_version_that_was_asked_for_is_sent(run, hub, which, version):
    evaluated(run, "validation-00005", 5, split="validation", skill=1.0)
    assert cli.main(["publish", str(run.path), "--which", which, "--repo", "me/agent", "--yes"]) == 0
    sent = run.path / "adapters" / f"v{version:05d}"
    assert hub[1] == ("folder", "me/agent", str(sent), f"Version {version}, made by nested_rl")
    assert (sent / "adapter_model.safetensors").read_bytes() == b"weights of %d" % version
    assert f"| version | {version} of 5 updates done |" in (sent / "README.md").read_text()


def test_best_is_not_merely_the_last(run, hub):
    evaluated(run, "validation-00003", 3, split="validation", skill=1.0)
    evaluated(run, "validation-00005", 5, split="validation", skill=0.0)
    assert cli.main(["publish", str(run.path), "--repo", "me/agent", "--yes"]) == 0
    assert hub[1][2] == str(run.path / "adapters" / "v00003")


def evaluated(run, name, version, *, split="test", skill=0.5, label=None):
    made_eval(run, name, label or f"{run.path}@{version}", version, split, skill)


def test_a_card_is_made_anew_when_the_run_was_evaluated_since(run, hub, capsys):
    argv = ["publish", str(run.path), "--which", "3", "--repo", "me/agent"]
    card_of = run.path / "adapters" / "v00003" / "README.md"
    assert cli.main(argv) == 0
    assert "None: no evaluation of version 3" in card_of.read_text()
    assert cli.main(argv) == 0
    assert "made anew" not in capsys.readouterr().out
    evaluated(run, "triage-3", 3)
    assert cli.main([*argv, "--yes"]) == 0
    assert "the card was made anew" in capsys.readouterr().out
    assert "no evaluation of version 3" not in card_of.read_text()
    assert "| triage | yes | 48 |" in card_of.read_text()
    assert len(hub) == 2


def test_words_of_ones_own_are_neither_lost_nor_sent_with_what_is_no_longer_so(run, hub, capsys):
    argv = ["publish", str(run.path), "--which", "3", "--repo", "me/agent"]
    card_of = run.path / "adapters" / "v00003" / "README.md"
    assert cli.main(argv) == 0
    card_of.write_text(card_of.read_text() + "\nMy own words.\n")
    assert cli.main(argv) == 0
    evaluated(run, "triage-3", 3)
    assert cli.main([*argv, "--yes"]) == 2
    assert "put your words aside, delete it, and run this again" in capsys.readouterr().err
    assert "My own words." in card_of.read_text()
    assert hub == []
    card_of.unlink()
    assert cli.main([*argv, "--yes"]) == 0
    assert "| triage | yes | 48 |" in card_of.read_text()


async def test_a_card_is_whole_or_as_it_was(run, monkeypatch):
    prepared = await ready(run, which="3")
    before = (prepared.path / "README.md").read_text()
    evaluated(run, "triage-3", 3)

    def full(path, data, **_):
        if path.name == "README.md":
            raise OSError(28, "No space left on device")
        return write_atomic(path, data)

    monkeypatch.setattr("nested_rl.publish.write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        await ready(run, which="3")
    assert (prepared.path / "README.md").read_text() == before
    monkeypatch.undo()
    await ready(run, which="3")
    assert "no evaluation of version 3" not in (prepared.path / "README.md").read_text()


async def test_a_folder_of_something_else_is_not_sent(run):
    (run.path / "adapters" / "v00005").mkdir(parents=True)
    with pytest.raises(SettingsError, match="no prepared adapter"):
        await ready(run)


async def test_a_folder_of_another_version_is_not_sent_as_this_one(run, tmp_path):
    out = tmp_path / "out"
    await ready(run, out, which="2")
    assert (await ready(run, out, which="2")).version == 2
    with pytest.raises(SettingsError, match=r"holds version 2, not version 3"):
        await ready(run, out, which="3")


async def test_a_run_may_be_moved_after_it_was_looked_at(run, tmp_path):
    await ready(run, which="2")
    run.path.rename(tmp_path / "moved")
    assert (await ready(RunDir.open(tmp_path / "moved"), which="2")).version == 2


def test_the_card_shows_masked_tasks_and_no_agent_of_another_making(run):
    evaluated(run, "frozen", 0, skill=1.0, label="openai:large@http://localhost:8000/v1")
    evaluated(run, "random", 0, skill=1.0, label="RandomPolicy")
    told = card(run, 0, BASE)
    assert [line for line in told.splitlines() if line.startswith("| triage |")] == [
        line for line in told.splitlines() if line.startswith("| triage | yes | 48 |")
    ]
    assert told.count("| triage |") == 1
    evaluated(run, "triage-3", 3)
    path = run.path / "evals" / "triage-3" / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "masked": 4}))
    assert "| triage | yes | 48 (4 more masked) |" in card(run, 3, BASE)


def test_the_card_says_how_to_evaluate_a_run_with_parts_of_its_own(run):
    assert "(`nested-rl evaluate RUN --policy 3`)" in card(run, 3, BASE)
    spec = run.path / "run.toml"
    spec.write_text(
        spec.read_text() + '\n[parts.trainer]\nname = "nested_rl.trainers.nano.NanoTrainer"\nlora_rank = 8\n'
    )
    assert "(`nested-rl evaluate RUN --policy 3 --using FILE.toml`)" in card(run, 3, BASE)


async def test_what_the_hub_says_holds_no_token(run, hub):
    prepared = await ready(run)
    with pytest.raises(NestedRLError, match="did not take me/refused") as told:
        upload(prepared, "me/refused")
    assert "hf_abc" not in str(told.value)


async def test_without_the_hub_client_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"nested-rl\[hub\]"):
        upload(await ready(run), "me/agent")
