"""What an experiment needs besides time and money: keys in the environment, and optional packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

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
        if "TinkerTrainer" in kinds and (why := _tinker(part)):
            yield Missing("TINKER_API_KEY", "TinkerTrainer", why)
        if "RunpodCompute" in kinds and not _there(_runpod):
            yield Missing("RUNPOD_API_KEY", "RunpodCompute", "set the environment variable, or run `runpod config`")


def _tinker(trainer: object) -> str:
    """What the trainer would say of its key; empty if nothing."""
    from nested_rl.trainers.tinker_errors import api_key

    try:
        api_key(getattr(trainer, "key_env", ""), base_url=getattr(trainer, "base_url", None))
    except SettingsError as error:
        return str(error)
    return ""


def _runpod() -> object:
    from nested_rl.compute.runpod_rest import api_key

    return api_key()


def _there(ask: Callable[[], object]) -> bool:
    try:
        return bool(ask())
    except SettingsError:
        return False
