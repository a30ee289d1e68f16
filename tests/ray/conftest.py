"""The Ray tier: a real cluster of several nodes on this computer, whose GPUs are declared. Skipped, with the reason, without Ray."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.ray)


@pytest.fixture(scope="session", autouse=True)
def _stack():
    pytest.importorskip("ray.exceptions", reason="Ray is not installed: make test-ray")


@pytest.fixture(scope="session")
def cluster():
    """A head without room for machines, where this program is, and two nodes with one CPU and one GPU each."""
    from nodes import Nodes

    folder = tempfile.mkdtemp(prefix="nrl-ray-")  # short: it holds sockets
    (Path(folder) / "ray").mkdir()  # where Ray writes which cluster is the current one; it makes no such folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        nodes = Nodes(folder)
        try:
            for _ in range(2):
                nodes.add(num_cpus=1, num_gpus=1)
            yield nodes
        finally:
            nodes.end()
            shutil.rmtree(folder, ignore_errors=True)
