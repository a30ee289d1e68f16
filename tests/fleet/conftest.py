"""The fleet tier: real sshd processes. Skipped, with the reason, where there is no sshd or no asyncssh."""

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.fleet)


@pytest.fixture(scope="session", autouse=True)
def _stack():
    pytest.importorskip("asyncssh", reason="asyncssh is not installed: make test-fleet")
    import sshd

    if sshd.SSHD is None:
        pytest.skip("there is no sshd here: apt-get install openssh-server")


@pytest.fixture
async def world():
    """Pods that are real processes, and their provider. In a short folder: the path of a socket has little room."""
    from pods import World

    with tempfile.TemporaryDirectory(prefix="nrl-") as folder:
        world = World(Path(folder))
        try:
            yield world
        finally:
            for one in world.made:
                await one.close()
            world.close()


@pytest.fixture
def shims(world, monkeypatch):
    """Programs of a pod that say what a test wants: `nvidia-smi`, `df`."""
    from pods import GPU

    folder = world.folder / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{world.path}")

    def says(program, script):
        draft = folder / f".{program}"
        draft.write_text(f"#!/bin/sh\n{script}\n")
        draft.chmod(0o755)
        draft.rename(folder / program)

    says("nvidia-smi", f"echo '{GPU}'")
    return says


@pytest.fixture
async def sshds(tmp_path):
    """Makes hosts; all of them are ended with the test."""
    from sshd import Sshd

    made = []

    async def make(n=1):
        for _ in range(n):
            one = Sshd(tmp_path / f"host-{len(made)}", key=tmp_path / "login")
            await one.start()
            made.append(one)
        return made[-n:]

    yield make
    for one in made:
        one.kill()
