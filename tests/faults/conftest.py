"""A disk to break, and a small experiment to run on it."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cases"))  # the small parts of an experiment are there

from disk import Disk, install


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    install(disk, monkeypatch)
    yield disk
    disk.restart()
