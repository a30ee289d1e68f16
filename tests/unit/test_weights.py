"""Bases on machines: found, downloaded once, made read-only, and the same for ever."""

import json
import os
import stat
import sys

import pytest

from nested_rl import weights
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import InfraFault, SettingsError
from nested_rl.types import Need
from nested_rl.weights import Lock, on_machine

BASE = "Qwen/Qwen3-0.6B"
COMMIT = "c1899de289a04d12100db370d81485cdf75e47ca"
HF = f"""#!{sys.executable}
import sys, pathlib
assert sys.argv[1:3] == ["download", "{BASE}"], sys.argv
folder = pathlib.Path(sys.argv[sys.argv.index("--local-dir") + 1])
(folder / "config.json").write_text("{{}}")
(folder / "model.safetensors").write_bytes(b"downloaded")
(folder / "modeling.py").write_text("import os")
note = folder / ".cache/huggingface/download/config.json.metadata"
note.parent.mkdir(parents=True)
note.write_text("{COMMIT}\\netag\\n0\\n")
log = pathlib.Path(__file__).with_name("calls")
log.write_text(log.read_text() + " ".join(sys.argv) + "\\n" if log.exists() else " ".join(sys.argv) + "\\n")
"""


def make_base(folder, data=b"weights"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(data)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
async def machine():
    compute = LocalCompute(1)
    async with compute.machine(Need()) as machine:
        yield machine
    await compute.close()


@pytest.fixture
def lock(tmp_path):
    return Lock(tmp_path / "settings" / "bases.lock.json")


@pytest.fixture
def hf(tmp_path, monkeypatch):
    """A stand-in for the program `hf`, which counts its calls."""
    program = tmp_path / "bin" / "hf"
    program.parent.mkdir()
    program.write_text(HF)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.with_name("calls")


@pytest.mark.parametrize("name", [BASE, "Qwen--Qwen3-0.6B", "Qwen3-0.6B"])
async def test_a_base_is_found_by_its_name_in_a_folder_of_bases(machine, lock, tmp_path, name):
    folder = make_base(tmp_path / "bases" / name)
    found = await weights.locate(machine, BASE, folders=[str(tmp_path / "nothing"), str(tmp_path / "bases")], lock=lock)
    assert found == str(folder)
    (entry,) = json.loads(lock.path.read_text()).values()
    assert set(entry["files"]) == {"config.json", "model.safetensors"}
    assert entry["sha256"] == lock.read(BASE).sha256


async def test_the_folders_are_those_of_the_variable(machine, lock, tmp_path, monkeypatch):
    folder = make_base(tmp_path / "bases" / "mine")
    monkeypatch.setenv(weights.FOLDERS, f"{tmp_path}/other:{tmp_path}/bases")
    assert await weights.locate(machine, "mine", lock=lock) == str(folder)


async def test_a_folder_is_a_base(machine, lock, tmp_path):
    folder = make_base(tmp_path / "mine")
    assert await weights.locate(machine, str(folder), lock=lock) == str(folder)
    with pytest.raises(InfraFault, match=r"no folder with config\.json"):
        await weights.locate(machine, str(tmp_path / "other"), lock=lock)


async def test_other_weights_under_the_same_name_are_refused(machine, lock, tmp_path):
    folders = [str(tmp_path / "bases")]
    folder = make_base(tmp_path / "bases" / BASE)
    await weights.locate(machine, BASE, folders=folders, lock=lock)
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(InfraFault, match=r"not those that were recorded: model\.safetensors"):
        await weights.locate(machine, BASE, folders=folders, lock=lock)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text('{"rope_theta": 1}')
    with pytest.raises(InfraFault, match=r"config\.json"):
        await weights.locate(machine, BASE, folders=folders, lock=lock)


async def test_a_change_that_hides_its_time_is_seen(machine, lock, tmp_path):
    folder = make_base(tmp_path / "bases" / BASE)
    await weights.locate(machine, BASE, folders=[str(tmp_path / "bases")], lock=lock)
    file = folder / "model.safetensors"
    before = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InfraFault, match="not those"):
        await weights.locate(machine, BASE, folders=[str(tmp_path / "bases")], lock=lock)


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    folder = make_base(tmp_path / "base")
    question = {"base": str(folder), "revision": "", "folders": [], "known": {}}
    first = on_machine.answer(question)
    monkeypatch.setattr(on_machine, "_sha256", lambda _: pytest.fail("read again"))
    known = {name: [file["stamp"], file["sha256"]] for name, file in first["files"].items()}
    assert on_machine.answer({**question, "known": known}) == first


async def test_a_base_that_is_nowhere_is_downloaded_once_and_read_only(machine, lock, tmp_path, hf):
    folders = [str(tmp_path / "kept")]
    found = await weights.locate(machine, BASE, folders=folders, lock=lock)
    again = await weights.locate(machine, BASE, folders=folders, lock=lock)
    assert found == again == str(tmp_path / "kept" / "Qwen--Qwen3-0.6B")
    assert hf.read_text().count("\n") == 1
    files = {path.name: path.stat().st_mode for path in (tmp_path / "kept" / "Qwen--Qwen3-0.6B").iterdir()}
    assert set(files) == {"config.json", "model.safetensors", ".revision"}
    assert not any(mode & (stat.S_IWGRP | stat.S_IWOTH) for mode in files.values())
    assert not files["model.safetensors"] & stat.S_IWUSR
    assert lock.read(BASE).revision == COMMIT
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["Qwen--Qwen3-0.6B"]


async def test_a_recorded_revision_is_what_is_downloaded(machine, lock, tmp_path, hf):
    lock.settle(BASE, weights.Record(revision=COMMIT, files={"config.json": "0" * 64}))
    with pytest.raises(InfraFault, match="not those"):
        await weights.locate(machine, BASE, folders=[str(tmp_path / "kept")], lock=lock)
    assert f"--revision {COMMIT}" in hf.read_text()


async def test_a_failed_download_is_told(machine, lock, tmp_path, hf):
    hf.with_name("hf").write_text("#!/bin/sh\necho 401 gated >&2\nexit 1\n")
    with pytest.raises(InfraFault, match="ended with 1: 401 gated"):
        await weights.locate(machine, BASE, folders=[str(tmp_path / "kept")], lock=lock)
    assert not list((tmp_path / "kept").iterdir())
    assert not lock.path.exists()


def test_a_snapshot_of_a_cache_becomes_plain_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "hub" / "models--Qwen--Qwen3-0.6B"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / name[:3]).write_text(name)
        (snapshot / name).symlink_to(blobs / name[:3])
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    told = on_machine.answer({"base": BASE, "revision": "", "folders": [str(tmp_path / "kept")], "known": {}})
    folder = tmp_path / "kept" / "Qwen--Qwen3-0.6B"
    assert (told["path"], told["revision"]) == (str(folder), COMMIT)
    assert not any(path.is_symlink() for path in folder.iterdir())
    other = on_machine.answer({"base": BASE, "revision": "0" * 40, "folders": [str(tmp_path / "empty")], "known": {}})
    assert "hf" in other["missing"]


@pytest.mark.parametrize("base", ["", "--help", "../x", "a/../b", "a b", "a/b/c", "a\0b"])
async def test_what_cannot_be_a_base_is_refused(machine, lock, base, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # a folder that exists is a base: there is none beside this one
    with pytest.raises(SettingsError, match="no base"):
        await weights.locate(machine, base, lock=lock)


def test_the_first_record_counts(lock):
    first = weights.Record(files={"config.json": "1" * 64})
    assert lock.settle("a", first) == first
    assert lock.settle("a", weights.Record(files={"config.json": "2" * 64})) == first
    assert lock.settle("a", weights.Record(revision=COMMIT, files=first.files)).revision == COMMIT
    assert lock.read("b") is None


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": {"files": {"x": "1"}, "sha256": "2"}}'])
def test_a_damaged_record_is_told(lock, text):
    lock.path.parent.mkdir()
    lock.path.write_text(text)
    with pytest.raises(SettingsError, match="record all bases anew"):
        lock.read("a")


def test_the_users_lock_can_be_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Lock.of_user().path == tmp_path / "nested-rl" / "bases.lock.json"
    monkeypatch.setenv("NESTED_RL_BASES_LOCK", str(tmp_path / "x.json"))
    assert Lock.of_user().path == tmp_path / "x.json"
