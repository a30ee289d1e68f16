"""The run directory: whole files, torn lines, full disks, other people's folders."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading

import pytest

from nested_rl import rundir
from nested_rl.errors import RunDirError, RunMismatch, SettingsError
from nested_rl.rundir import Log, RunDir, write_atomic
from nested_rl.types import Episode, Message, Outcome, Score, Task, Transcript, Turn, Validation

TASK = Task(id="t", family="ledger", difficulty=2)


def episode(**kw):
    turn = Turn(message=Message(role="assistant", content="hi"), prompt_ids=(1,), ids=(2, 3), logprobs=(-0.5, -1.25))
    words = Transcript(conversation=(Message(role="user", content="task"), turn), end="submitted")
    outcome = Outcome(task=TASK, valid=True, attempts=1, baselines={"nano-m": Score.of([1.0, 0.0])})
    base = {"group": 3, "member": 1, "task": TASK, "version": 2, "transcript": words, "outcome": outcome}
    return Episode(**base | {"validations": (Validation(ok=True),), "reward": 0.25, "parts": {"quality": 0.5}} | kw)


def test_an_episode_comes_back_as_it_was(tmp_path):
    run = RunDir.create(tmp_path / "r", {"steps": 1})
    run.write_episode(episode(), files={1: {"job.toml": "x = 1", "data/rows.jsonl": "{}"}})
    assert run.read_episode(3, 1) == episode()
    assert (run.episode_dir(3, 1) / "attempts/1/files/data/rows.jsonl").read_text() == "{}"
    assert list(run.episodes()) == [episode()]
    run.close()


def test_an_episode_without_its_last_file_is_not_there(tmp_path):
    run = RunDir.create(tmp_path / "r", {"steps": 1})
    run.write_episode(episode(), files={})
    (run.episode_dir(3, 1) / "reward.json").unlink()
    assert run.read_episode(3, 1) is None
    run.close()


def test_the_salt_is_secret_and_stays(tmp_path):
    run = RunDir.create(tmp_path / "r", {"steps": 1})
    salt = run.salt
    assert stat.S_IMODE((run.path / "secret/salt").stat().st_mode) == 0o600
    run.close()
    again = RunDir.create(tmp_path / "r", {"steps": 1})
    assert again.salt == salt
    again.close()
    other = RunDir.create(tmp_path / "o", {"steps": 1}, salt=salt)
    assert other.salt == salt
    other.close()


def test_another_experiment_is_refused_and_the_fields_are_named(tmp_path):
    RunDir.create(tmp_path / "r", {"steps": 1, "seed": 0}).close()
    RunDir.create(tmp_path / "r", {"steps": 9, "seed": 0}, may_change=("steps",)).close()
    with pytest.raises(RunMismatch, match="seed: was 0, now 1"):
        RunDir.create(tmp_path / "r", {"steps": 9, "seed": 1}, may_change=("steps",))
    assert RunDir.open(tmp_path / "r").spec["seed"] == 0


def test_two_processes_cannot_own_one_run(tmp_path):
    first = RunDir.create(tmp_path / "r", {"steps": 1})
    with pytest.raises(SettingsError, match="another process"):
        RunDir.create(tmp_path / "r", {"steps": 1})
    first.close()
    RunDir.create(tmp_path / "r", {"steps": 1}).close()


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(SettingsError, match="not empty"):
        RunDir.create(tmp_path, {"steps": 1})
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    assert not (tmp_path / "run.toml").exists()


def test_no_run_to_open(tmp_path):
    with pytest.raises(SettingsError, match=r"no run\.toml"):
        RunDir.open(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="file"):
        RunDir.create(tmp_path / "file" / "run", {"steps": 1})


def test_a_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path):
    log = Log(tmp_path / "j")
    log.append({"a": 1})
    log.close()
    with (tmp_path / "j").open("ab") as file:
        file.write(b'{"a": 2')
    assert list(Log(tmp_path / "j").rows()) == [{"a": 1}]
    log = Log(tmp_path / "j")
    log.append({"a": 3}, sync=True)
    assert list(log.rows()) == [{"a": 1}, {"a": 3}]
    log.close()


def test_damage_in_the_middle_is_told_with_its_line(tmp_path):
    (tmp_path / "j").write_bytes(b'{"a": 1}\n\x00\x00\n{"a": 2}\n')
    with pytest.raises(RunDirError, match="line 2"):
        list(Log(tmp_path / "j").rows())


def test_nan_is_never_written(tmp_path):
    log = Log(tmp_path / "j")
    with pytest.raises(ValueError, match="Out of range"):
        log.append({"a": float("nan")})
    assert list(log.rows()) == []


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_atomic(path, b"old")

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir.os, "fsync", full)
    with pytest.raises(RunDirError, match="No space left"):
        write_atomic(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_a_short_write_to_the_journal_is_taken_back(tmp_path):
    log = Log(tmp_path / "j")
    log.append({"a": 1})
    real = log._file

    class Short:
        def fileno(self):
            return real.fileno()

        def write(self, line):
            real.write(line[:3])
            return 3

        def truncate(self, size):
            real.truncate(size)

    log._file = Short()
    with pytest.raises(RunDirError, match="No space left"):
        log.append({"a": 2})
    log._file = real
    log.append({"a": 3})
    assert list(log.rows()) == [{"a": 1}, {"a": 3}]
    log.close()


def test_two_writers_of_one_file_never_mix(tmp_path):
    path = tmp_path / "f.json"
    write_atomic(path, b"[0]")
    bad = []

    def write(n):
        for i in range(200):
            write_atomic(path, json.dumps([n] * (i % 50 + 1)).encode())

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        found = json.loads(path.read_bytes())
        bad += [found] if len(set(found)) != 1 else []
    assert not bad
    assert [p.name for p in tmp_path.iterdir()] == ["f.json"]


def test_a_cost_counts_once(tmp_path):
    run = RunDir.create(tmp_path / "r", {"steps": 1})
    run.costs_log.append({"id": "a", "usd": 1.0})
    run.costs_log.append({"id": "a", "usd": 1.0})
    assert len(run.costs()) == 1
    run.close()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\0b", ""])
def test_a_file_of_a_job_stays_in_its_folder(tmp_path, name):
    run = RunDir.create(tmp_path / "r", {"steps": 1})
    with pytest.raises(SettingsError, match="no name for a file"):
        run.write_episode(episode(), files={1: {name: "x"}})
    run.close()
