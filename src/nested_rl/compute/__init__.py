"""Compute backends: where machines come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.compute.local import LocalCompute
    from nested_rl.compute.ray import RayCompute
    from nested_rl.compute.runpod import RunpodCompute
    from nested_rl.compute.ssh import SSHCompute
    from nested_rl.compute.ssh_login import Host

__all__ = ["Host", "LocalCompute", "RayCompute", "RunpodCompute", "SSHCompute"]

__getattr__ = lazy.names(
    __name__,
    {"Host": "ssh_login", "LocalCompute": "local", "RayCompute": "ray", "RunpodCompute": "runpod", "SSHCompute": "ssh"},
)
