"""Nodes of a Ray cluster on this computer, and the processes that belong to them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from ray.cluster_utils import Cluster


class Nodes:
    """A cluster in `folder`. Whatever it started is ended with it, by its id."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": False, "temp_dir": folder}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self, **has):
        """One more node."""
        return self.cluster.add_node(temp_dir=self.folder, **has)

    def kill(self, node) -> None:
        """It dies at once, as if somebody pulled the plug."""
        self.cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        self.cluster.shutdown()
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Those of Ray that name this cluster's folder."""
        return [pid for pid, told in commands() if self.folder in told and pid != os.getpid()]


def commands():
    """Every process: its id, and its command with its environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if b" Z " not in (entry / "stat").read_bytes()[:64]:
                    yield int(entry.name), told.decode(errors="replace")
