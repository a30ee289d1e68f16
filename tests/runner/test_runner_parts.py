"""The runner's parts: files of a hostile folder, rows and verdicts, the driver, the process tree, the archive."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nested_rl import model_files
from nested_rl.inner.prime_rl import preflight
from nested_rl.inner.prime_rl.launch import Watch
from nested_rl.inner.prime_rl.runner import files, gpus, program, tree
from nested_rl.inner.prime_rl.runner.files import Folder, Lines
from nested_rl.inner.prime_rl.runner.watchdog import Limits, Watchdog
from nested_rl.scorers import vllm_host, vllm_server
from nested_rl.weights import on_machine

SOURCE = Path(files.__file__).parent

# ---------------------------------------------------------------- one file for any Python from 3.10 on


@pytest.mark.parametrize(
    "path",
    [*sorted(SOURCE.glob("*.py")), *(Path(module.__file__) for module in (model_files, vllm_host, on_machine))],
    ids=lambda path: path.name,
)
def test_only_the_standard_library_and_the_syntax_of_3_10(path):
    parsed = ast.parse(path.read_text("utf-8"), feature_version=(3, 10))
    names = {alias.name for node in ast.walk(parsed) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom) and not node.level}
    assert {name.partition(".")[0] for name in names} <= (sys.stdlib_module_names - {"tomllib"}) | {"nested_rl"}
    assert {name for name in names if name.startswith("nested_rl")} <= {"nested_rl.model_files"}


def test_the_archive_is_the_same_for_the_same_source_and_runs_alone(tmp_path):
    assert preflight.runner.__wrapped__() == preflight.runner()
    with zipfile.ZipFile(BytesIO(preflight.runner())) as archive:
        assert len(archive.namelist()) == len(list(SOURCE.glob("*.py"))) + 3
    (tmp_path / "runner.pyz").write_bytes(preflight.runner())
    argv = [sys.executable, "-I", "-S", str(tmp_path / "runner.pyz"), "facts", "no-such-program", "0", "1", "0"]
    told = subprocess.run(argv, capture_output=True, check=True, env={"PATH": "/nowhere"}, cwd=tmp_path)
    assert json.loads(told.stdout)["program"] == ""


def test_the_host_of_vllm_runs_alone_too(tmp_path):
    assert vllm_server.host.__wrapped__() == vllm_server.host()
    (tmp_path / "host.pyz").write_bytes(vllm_server.host())
    order = {"root": str(tmp_path), "base": "/nowhere"}
    argv = [sys.executable, "-I", "-S", str(tmp_path / "host.pyz")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as host:
        said, _ = host.communicate(json.dumps(order).encode() + b"\n")
    assert json.loads(said) == {"refused": "/nowhere: no such base on this machine"}


def test_all_that_runs_on_a_machine_knows_one_place_of_the_image():
    assert on_machine.IMAGE_BIN == program.IMAGE_BIN == model_files.IMAGE_BIN
    assert f"{model_files.IMAGE_BIN}/python" == vllm_host.IMAGE_PYTHON


def test_the_controller_and_the_runner_know_the_same_limits():
    here = {a.name: a.default for a in Watch.__attrs_attrs__ if not a.metadata.get("here")}
    there = {name: f.default for name, f in Limits.__dataclass_fields__.items() if not name.endswith("_s")}
    assert here.keys() - {"poll_s", "beat_s", "patience_s", "gpu_s"} == there.keys()
    assert all(here[name] == value for name, value in there.items())


# ---------------------------------------------------------------- files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job" / "logs").mkdir(parents=True)
    (tmp_path / "secret").write_text("root:x")
    return Folder(str(tmp_path / "job"))


def test_links_pipes_and_second_names_are_not_read(folder, tmp_path):
    job = tmp_path / "job"
    (job / "link").symlink_to(tmp_path / "secret")
    (job / "away").symlink_to(tmp_path)
    os.mkfifo(job / "pipe")
    (job / "file").write_text("x")
    os.link(job / "file", job / "again")
    for path in ("link", "away/secret", "pipe", "again", "logs", "../secret", "logs/../../secret", "nothing", ""):
        assert folder.tail(path, 100) == ""
        assert not folder.has(path)
    with pytest.raises(OSError, match="one name"):
        folder.read("file", 10)
    assert folder.names("away") == []


def test_the_end_of_a_long_file_is_told_with_what_is_left_out(folder, tmp_path):
    (tmp_path / "job" / "logs" / "long").write_bytes(b"\xff" * 50 + b"end")
    assert folder.tail("logs/long", 3) == "... 50 bytes before this\nend"
    assert folder.read("logs/long", 2) == b"\xff\xff"


def test_what_a_folder_uses(folder, tmp_path):
    before = folder.used()
    (tmp_path / "job" / "logs" / "big").write_bytes(bytes(1 << 20))
    (tmp_path / "job" / "round").symlink_to(tmp_path / "job")
    assert (1 << 20) <= folder.used() - before < (2 << 20)


def append(folder, text):
    with Path(folder.path, "rows").open("ab") as file:
        file.write(text)


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=5), max_size=6),
    st.data(),
)
def test_lines_come_whole_however_the_file_grows(tmp_path_factory, lines, data):
    folder = Folder(str(tmp_path_factory.mktemp("lines")))
    whole = "".join(f"{line}\n" for line in lines).encode() + b"unfinished"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    tail, seen = Lines(folder, at_once=7), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        append(folder, whole[start:end])
        while new := tail.new("rows"):
            seen += new
    for _ in range(len(whole)):
        seen += tail.new("rows")
    assert seen == lines


def test_a_line_without_end_does_not_fill_the_memory(folder):
    tail = Lines(folder, at_once=100, longest=50)
    append(folder, b"x" * 400)
    for _ in range(5):
        assert tail.new("rows") == []
    append(folder, b"\nshort\n")
    assert tail.new("rows")[-1] == "short"


def test_a_file_that_is_begun_again_is_read_again(folder):
    tail = Lines(folder)
    append(folder, b"one\ntwo\n")
    assert tail.new("rows") == ["one", "two"]
    Path(folder.path, "rows").write_text("new\n")
    assert tail.new("rows") == ["new"]


# ---------------------------------------------------------------- rows and verdicts


@pytest.fixture
def dog():
    return Watchdog(Limits(deadline_s=100, start_s=10, stall_s=5), 0.0, 100.0)


def row(step, **values):
    names = {"reward": "train/agg/effective/agent/reward/mean", "trainable": "train/agg/all/agent/is_trainable/mean",
             "errors": "train/agg/all/agent/has_error/mean", "lr": "optim/lr", "norm": "optim/grad_norm"}  # fmt: skip
    return json.dumps({"step": step, "time": 0.0, **{names.get(name, name): value for name, value in values.items()}})


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "{}", '{"step": "x"}', '{"step": 1e999}', "[" * 200_000,
                                  '{"step": %s}' % ("9" * 400), '{"train/agg/effective/a/reward/mean": null}'])  # fmt: skip
def test_what_is_no_row_is_passed_over(dog, text):
    dog.row(text, 1.0)
    assert dog.curve == []


def test_the_curve_is_by_step_over_all_agents(dog):
    dog.row(row(2, reward=0.4), 1.0)
    dog.row(row(1, reward=0.2), 1.0)
    dog.row('{"step": 3, "train/agg/effective/a/reward/mean": 0.5, "train/agg/effective/b/reward/mean": 1.5}', 1.0)
    dog.row(row(4, other=9.0, lr=1.0), 1.0)
    assert dog.curve == [0.2, 0.4, 1.0]


def test_time_until_the_first_row_between_rows_and_for_everything(dog):
    assert dog.verdict(10.0) is None
    assert dog.verdict(10.1)[0] == "no_start"
    dog.row(row(1, reward=0.1), 12.0)
    assert dog.verdict(17.0) is None
    assert dog.verdict(17.1)[0] == "stalled"
    assert dog.verdict(100.1)[0] == "deadline"


def test_values_that_are_not_finite(dog):
    dog.row(row(1, lr=1e-6), 1.0)
    dog.row(row(2, lr=1e-6), 1.0)
    assert dog.verdict(1.0) is None, "a run that clips nothing has no norms"
    dog.row(row(3, lr=1e-6, norm=1.0), 1.0)
    dog.row(row(4, lr=1e-6), 1.0)
    assert dog.verdict(1.0) is None
    dog.row(row(5, lr=1e-6, norm=2.0), 1.0)
    dog.row(row(6, lr=1e-6), 1.0)
    dog.row(row(6, reward=0.1), 1.0)
    dog.row(row(7, lr=1e-6), 1.0)
    assert dog.verdict(1.0)[0] == "nan"


def test_not_a_number_written_out(dog):
    for step in (1, 2):
        dog.row('{"step": %d, "loss/mean": NaN}' % step, 1.0)  # noqa: UP031
    assert dog.verdict(1.0)[0] == "nan"


def test_no_signal_is_counted_from_the_last_step_that_had_some(dog):
    for _ in range(3):
        dog.line("WARNING Step 1: empty train batch after 128 finalized episodes")
    dog.row(row(1, reward=0.5), 1.0)
    dog.line("Step 2: empty train batch")
    assert dog.verdict(1.0) is None
    for _ in range(3):
        dog.line("Step 2: empty train batch")
    assert dog.verdict(1.0)[0] == "zero_signal"


def test_rows_without_anything_to_train_on(dog):
    for step in range(8):
        assert dog.verdict(1.0) is None
        dog.row(row(step, trainable=0.0, errors=1.0), 1.0)
    kind, why = dog.verdict(1.0)
    assert kind == "zero_signal"
    assert "every rollout ended with an error" in why


@pytest.mark.parametrize(
    ("rewards", "kind"),
    [
        ([0.5] * 5 + [0.05] * 5, "collapse"),
        ([0.5] * 5 + [0.2] * 20, None),
        ([0.01] * 5 + [0.0] * 20, None),
        ([0.5] * 5 + [0.0] * 3 + [0.5], None),
        ([-1.0] * 30, None),
    ],
)
def test_collapse_is_from_a_height_and_lasts(dog, rewards, kind):
    for step, reward in enumerate(rewards):
        dog.row(row(step, reward=reward), 1.0)
    assert (dog.verdict(1.0) or [None])[0] == kind


# ---------------------------------------------------------------- the driver


def smi(folder, script, monkeypatch):
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_what_the_driver_says(tmp_path, monkeypatch):
    smi(tmp_path, "echo '0, NVIDIA A40, 46068, 3, 0, 570.1'; echo '1, RTX 3090, 24576, 900, [N/A], 570.1'", monkeypatch)
    first, second = gpus.query()
    assert (first.total_mib, first.ecc, second.used_mib, second.ecc) == (46068, 0, 900, 0)
    assert gpus.named([first, second], "1,1") == [second]
    assert gpus.named([first, second], " 0, 1") == [first, second]


@pytest.mark.parametrize("script", ["echo 'Unable to determine the device handle'", "exit 9", "echo a,b,c,d,e,f"])
def test_a_driver_that_is_lost(tmp_path, monkeypatch, script):
    smi(tmp_path, script, monkeypatch)
    with pytest.raises(gpus.DriverLost, match="nvidia-smi"):
        gpus.query()


def test_memory_is_given_back_in_moments_or_never(monkeypatch):
    told = iter([900, 700, 3])
    monkeypatch.setattr(gpus, "query", lambda: [gpus.Gpu(0, "A40", 46068, next(told, 800), 0, "")])
    paused = []
    assert gpus.freed("0", 600, 60.0, pause=lambda: paused.append(1))[0].used_mib == 3
    assert len(paused) == 2
    assert gpus.freed("0", 600, 0.0, pause=lambda: paused.append(1))[0].used_mib == 800
    assert len(paused) == 2


def test_without_a_driver_there_are_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.query() == []


# ---------------------------------------------------------------- processes


def test_descendants_are_those_below_and_not_zombies():
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; exec cat"], stdin=-1, stdout=-1) as shell:
        below = int(shell.stdout.readline())
        found = tree.descendants(os.getpid())
        assert {shell.pid, below} <= set(found)
        assert os.getpid() not in found
        os.kill(below, 9)
        shell.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_what_a_user_has_abandoned_is_what_nobody_is_above():
    uid = 10**6 + os.getpid()
    kept = subprocess.Popen(["sleep", "60"], user=uid, group=uid, extra_groups=[])
    with subprocess.Popen(["sh", "-c", "sleep 60 > /dev/null & echo $!"], user=uid, group=uid, stdout=-1) as shell:
        left = int(shell.stdout.readline())
    try:
        if "PPid:\t1\n" not in Path(f"/proc/{left}/status").read_text():
            pytest.skip("orphans have another parent here")
        assert tree.abandoned(uid) == [left]
    finally:
        for pid in (kept.pid, left):
            os.kill(pid, 9)
        kept.wait()


def test_whether_another_user_can_go_there(tmp_path):
    tmp_path.chmod(0o700)
    assert program.reachable(str(tmp_path), None)
    assert not program.reachable(str(tmp_path), 65534)
    assert program.reachable("/usr/bin", 65534)


def test_what_the_controller_may_set_is_what_the_runner_knows():
    """Two programs, one of them alone on its machine: the names and the defaults are the same in both."""
    import attrs

    from nested_rl.inner.prime_rl.launch import Watch

    sent = {f.name: f.default for f in attrs.fields(Watch) if not f.metadata.get("here")}
    known = {f.name: f.default for f in dataclasses.fields(Limits) if f.default is not dataclasses.MISSING}
    assert sent == known
