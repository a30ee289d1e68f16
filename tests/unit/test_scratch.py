"""What a killed process was still writing is removed by the next one; what a living one writes is left alone."""

import os
import subprocess
import sys

import pytest

from nested_rl import process, scratch
from nested_rl.errors import SettingsError
from nested_rl.rundir import RunDir, write_atomic


@pytest.fixture(scope="module")
def dead():
    """The identity of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    told = process.identity(child.pid)
    child.communicate(b"\n")
    return told


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_drafts_of_the_dead_go_and_those_of_the_living_stay(tmp_path, dead):
    run = RunDir.create(tmp_path / "run", {"steps": 1})
    run.close()
    folder = tmp_path / "run" / "checkpoints"
    write_atomic(folder / "00001" / "weights", b"whole")
    theirs = [folder / f".draft-{dead}-0badcafe" / "model", folder / "00001" / f".draft-{dead}-0badcafe"]
    ours = scratch.draft(folder)
    for path in (*theirs, ours):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    RunDir.create(tmp_path / "run", {"steps": 1}).close()
    assert sorted(p.name for p in folder.rglob("*")) == sorted(["00001", "weights", ours.name])


def test_a_draft_that_cannot_be_told_from_a_file_of_somebodys_own_stays(tmp_path):
    (tmp_path / ".draft-of-my-paper").write_text("precious")
    scratch.sweep(tmp_path)
    assert (tmp_path / ".draft-of-my-paper").exists()


def test_the_desks_of_killed_controllers_are_cleared_away(temporary, dead):
    desks = temporary / f"nested_rl-{os.getuid()}" / "desks"
    (desks / f"{dead}-0badcafe").mkdir(parents=True)
    living = desks / scratch.named()
    living.mkdir()
    with scratch.desk() as folder:
        (folder / "job.toml").write_text("x")
        assert sorted(desks.iterdir()) == sorted([folder, living])
    assert list(desks.iterdir()) == [living]


def test_somebody_elses_folder_is_refused(temporary):
    (temporary / "elsewhere").mkdir()
    (temporary / f"nested_rl-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(SettingsError, match="not a folder of this user"), scratch.desk():
        pass
