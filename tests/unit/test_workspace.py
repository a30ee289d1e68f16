"""The workspace: what it holds, and everything it refuses."""

import os
import stat
from pathlib import Path

import pytest

from nested_rl.harness.workspace import (
    BadPath,
    Limits,
    NoFile,
    NotText,
    TextNotFound,
    TextNotUnique,
    TooBig,
    Workspace,
)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def ws(root):
    with Workspace(root) as workspace:
        yield workspace


def test_write_read_edit_and_snapshot(ws):
    ws.write("job.toml", "steps = 10\n")
    ws.write("data/train.jsonl", "{}\n")
    ws.edit("job.toml", "10", "25")
    assert ws.read("job.toml") == "steps = 25\n"
    assert ws.paths() == ("data/train.jsonl", "job.toml")
    assert ws.files() == {"data/train.jsonl": "{}\n", "job.toml": "steps = 25\n"}


def test_text_comes_back_exactly(ws):
    text = "a\r\nb\rc\x00é\u2028日本\n\n"
    ws.write("x.txt", text)
    assert ws.read("x.txt") == text


def test_edit_needs_one_exact_match(ws):
    ws.write("a.py", "x = 1\nx = 1\naaa\n")
    with pytest.raises(TextNotFound, match="copy it exactly"):
        ws.edit("a.py", "x  = 1", "y")
    with pytest.raises(TextNotUnique, match="more than once"):
        ws.edit("a.py", "x = 1", "y")
    with pytest.raises(TextNotUnique, match="more than once"):
        ws.edit("a.py", "aa", "b")  # overlapping matches are two matches
    with pytest.raises(TextNotUnique, match="empty"):
        ws.edit("a.py", "", "y")
    with pytest.raises(NoFile):
        ws.edit("b.py", "x", "y")
    assert ws.read("a.py") == "x = 1\nx = 1\naaa\n"


OUTSIDE = [
    "../x",
    "/etc/passwd",
    "a/../../x",
    "a/../x",
    "a\\..\\x",
    "x\0y",
    "~/.ssh/id",
    "~",
    "file:///etc/passwd",
    "file:x",
    "C:x",
    "",
    ".",
    "..",
    "./x",
    "a//b",
    "a/",
    "/",
    " x",
    "x\n",
    "x\ty",
    "caf\u00e9",
    "x\u202ey",
    "a/b/c/d/e",
    "n" * 201,
    "n" * 100_000,
    ".half-written-00",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_bad_paths_are_refused_by_every_operation(ws, root, path):
    if path and "\0" not in path and len(path) < 250:
        ws.write("a", "x") if not path.startswith("a/") else None
    for act in (ws.read, lambda p: ws.write(p, "x"), lambda p: ws.edit(p, "x", "y")):
        with pytest.raises(BadPath) as caught:
            act(path)
        assert len(str(caught.value)) < 400
    assert sorted(p.name for p in root.parent.iterdir()) == ["ws"]


def test_the_prefix_twin_of_the_root_is_outside(ws, root):
    twin = root.parent / "ws-evil"
    twin.mkdir()
    (twin / "x").write_text("secret")
    for path in (str(twin / "x"), "../ws-evil/x"):
        with pytest.raises(BadPath):
            ws.read(path)


def test_dangling_link_is_refused_and_nothing_appears_outside(ws, root, tmp_path):
    outside = tmp_path / "outside_new"
    (root / "a").symlink_to(outside)
    for act in (lambda: ws.write("a", "x"), lambda: ws.read("a"), lambda: ws.edit("a", "x", "y"), ws.files):
        with pytest.raises(BadPath):
            act()
    assert not outside.exists()
    assert (root / "a").is_symlink()
    assert ws.paths() == ()


def test_link_to_a_file_is_neither_read_nor_replaced(ws, root, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    (root / "a").symlink_to(secret)
    with pytest.raises(BadPath):
        ws.read("a")
    with pytest.raises(BadPath):
        ws.write("a", "x")
    assert secret.read_text() == "s3cret"


def test_link_in_a_parent_is_refused(ws, root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("s3cret")
    (root / "d").symlink_to(outside)
    (root / "gone").symlink_to(tmp_path / "absent")
    for path in ("d/x", "d/new", "gone/x"):
        with pytest.raises(BadPath):
            ws.read(path)
        with pytest.raises(BadPath):
            ws.write(path, "y")
    assert sorted(p.name for p in outside.iterdir()) == ["x"]
    assert not (tmp_path / "absent").exists()
    assert ws.paths() == ()


def test_hard_link_is_refused(ws, root, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    os.link(secret, root / "a")
    for act in (lambda: ws.read("a"), lambda: ws.write("a", "x"), ws.files):
        with pytest.raises(BadPath, match="plain file"):
            act()
    assert secret.read_text() == "s3cret"


def test_pipe_is_refused_without_waiting(ws, root):
    os.mkfifo(root / "pipe")
    for act in (lambda: ws.read("pipe"), lambda: ws.write("pipe", "x"), ws.files):
        with pytest.raises(BadPath, match="plain file"):
            act()
    assert stat.S_ISFIFO((root / "pipe").lstat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device file")
def test_device_is_refused(ws, root):
    try:
        os.mknod(root / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container does not allow device files")
    for act in (lambda: ws.read("null"), lambda: ws.write("null", "x"), ws.files):
        with pytest.raises(BadPath):
            act()


def test_folder_where_a_file_is_meant_and_the_other_way_round(ws):
    ws.write("d/x", "1")
    for act in (
        lambda: ws.read("d"),
        lambda: ws.write("d", "2"),
        lambda: ws.read("d/x/y"),
        lambda: ws.write("d/x/y", ""),
    ):
        with pytest.raises(BadPath):
            act()
    assert ws.files() == {"d/x": "1"}


def test_missing_file_and_folder(ws):
    for path in ("x", "d/x"):
        with pytest.raises(NoFile, match="no such file"):
            ws.read(path)


def test_sizes_are_limited(root):
    with Workspace(root, Limits(file_bytes=10, total_bytes=15, files=3)) as ws:
        with pytest.raises(TooBig, match="11 bytes; a file may have 10"):
            ws.write("a", "é" * 5 + "x")
        ws.write("a", "x" * 10)
        with pytest.raises(TooBig, match="may hold 15 bytes"):
            ws.write("b", "x" * 6)
        ws.write("a", "x" * 4)  # replacing counts the new size alone
        ws.write("b", "x" * 6)
        ws.write("c", "")
        with pytest.raises(TooBig, match="may hold 3 files"):
            ws.write("d", "")
        (root / "c").write_text("x" * 11)
        with pytest.raises(TooBig):
            ws.read("c")
        assert ws.read("b") == "x" * 6


def test_only_text(ws, root):
    with pytest.raises(NotText):
        ws.write("a", "\ud800")
    (root / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(NotText):
        ws.read("b")


def test_a_failed_write_leaves_the_old_text_and_no_litter(ws, root, monkeypatch):
    ws.write("a", "old")

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        ws.write("a", "new")
    assert ws.read("a") == "old"
    assert [p.name for p in root.iterdir()] == ["a"]


def test_a_folder_swapped_for_a_link_after_opening_does_not_lead_outside(ws, root, tmp_path):
    """The handle is on the folder itself: renaming the root away changes nothing, and a new link in its place is not used."""
    outside = tmp_path / "outside"
    outside.mkdir()
    moved = root.rename(tmp_path / "moved")
    root.symlink_to(outside)
    ws.write("a", "x")
    assert list(outside.iterdir()) == []
    assert (moved / "a").read_text() == "x"


def test_the_root_itself_must_not_be_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="link"):
        Workspace(Path(tmp_path / "link"))


def open_handles():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts handles through /proc")
def test_handles_are_given_back(root):
    before = open_handles()
    with Workspace(root) as ws:
        for _ in range(20):
            ws.write("d/e/x", "1")
            ws.files()
            with pytest.raises(BadPath):
                ws.read("d/e")
            with pytest.raises(NoFile):
                ws.read("d/f/x")
            with pytest.raises(BadPath):
                ws.read("d/e/x/y")
        ws.close()
        ws.close()
    assert open_handles() == before
