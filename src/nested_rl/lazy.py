"""Names that load when they are first used (PEP 562), so that `import nested_rl` pulls in no optional stack."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def names(package: str, where: Mapping[str, str]) -> Callable[[str], object]:
    """A module `__getattr__` that finds each name in its submodule.

    >>> import nested_rl.queues
    >>> nested_rl.queues.MemoryQueue.__name__
    'MemoryQueue'
    """

    def find(name: str) -> object:
        if name in where:
            return getattr(importlib.import_module(f"{package}.{where[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
