"""A disk to break, and a small experiment to run on it."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "cases"))  # the small parts of an experiment are there

from disk import Disk, install

from nested_rl import loop
from nested_rl.report import page


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Two validation tasks, an empty page and none of episodes; and a wait for the disk keeps its place among the side effects."""

    async def here(work, *args, **how):
        return work(*args, **how)

    monkeypatch.setattr(loop, "VALIDATION_TASKS", 2)
    monkeypatch.setattr(page, "render_digest", lambda run, digest: "<html>")
    monkeypatch.setattr(page.transcripts, "write_transcripts", lambda run, episodes: [])
    monkeypatch.setattr(asyncio, "to_thread", here)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    install(disk, monkeypatch)
    yield disk
    disk.restart()
