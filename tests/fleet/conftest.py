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
