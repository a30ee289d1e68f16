"""What all cases share."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch):
    """A killed process loses nothing that it has written; waiting for the disk only matters to a computer that stops."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
