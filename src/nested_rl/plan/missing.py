"""What an experiment needs besides time and money: keys in the environment, and optional packages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

from nested_rl.errors import SettingsError


@frozen
class Missing:
    """Something that is not here, who wants it, and what to do."""

    name: str
    part: str
    hint: str


_EXTRAS = (
    # class, the module that must be there, the extra that brings it
    ("TinkerTrainer", "tinker", "tinker"),
    ("RunpodCompute", "asyncssh", "ssh"),
    ("SSHCompute", "asyncssh", "ssh"),
    ("RayCompute", "ray", "ray"),
)


def missing(*parts: object) -> Iterator[Missing]:
    """In the order of the parts, packages before keys."""
    for part in parts:
        kinds = {kind.__name__ for kind in type(part).__mro__}
        for name, module, extra in _EXTRAS:
            if name in kinds and find_spec(module) is None:
                yield Missing(f"package {module}", name, f"pip install 'nested-rl[{extra}]'")
        if "TinkerTrainer" in kinds and not getattr(part, "base_url", None) and not _tinker():
            yield Missing("TINKER_API_KEY", "TinkerTrainer", "set the environment variable; the key begins with tml-")
        if "RunpodCompute" in kinds and not _there(_runpod):
            yield Missing("RUNPOD_API_KEY", "RunpodCompute", "set the environment variable, or run `runpod config`")


def _tinker() -> bool:
    stored = Path.home() / ".tinker" / "credentials.json"
    return bool(os.environ.get("TINKER_API_KEY") or os.environ.get("TINKER_CREDENTIAL_CMD")) or stored.is_file()


def _runpod() -> object:
    from nested_rl.compute.runpod_rest import api_key

    return api_key()


def _there(ask: Callable[[], object]) -> bool:
    try:
        return bool(ask())
    except SettingsError:
        return False
