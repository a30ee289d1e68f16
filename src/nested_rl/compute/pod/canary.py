"""One small computation on every GPU of a pod, and one on its processor: whether CUDA works there, whether it computes right, how long it takes.

Standard library only until a Python with torch is found: the image's, then whatever `python3` is. One line of JSON is the answer.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

PYTHONS = ("/app/.venv/bin/python", "python3", "python")
"""Where torch is looked for: the image that full-scale jobs are written for, then the PATH."""
SIZE = 2048
"""Matrices of ones: every element of their product is this number, which 16 bits hold exactly."""
PRODUCTS = 200
BYTES = 64 * 2**20
ROUNDS = 3
_HAS_TORCH = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"


def main() -> None:
    """Find the right Python and go on in it."""
    if sys.argv[1:] == ["here"]:
        print(json.dumps(measured(importlib.import_module("torch"))))  # noqa: T201  the answer
        return
    python = found(PYTHONS)
    if python is None:
        print(json.dumps({"error": f"no Python with torch: looked for {', '.join(PYTHONS)}"}))  # noqa: T201
        return
    os.execv(python, [python, "-I", __file__, "here"])  # noqa: S606  no shell is wanted


def found(pythons: Sequence[str]) -> str | None:
    """The first of them that has torch."""
    for name in pythons:
        python = shutil.which(name)
        if python and subprocess.run([python, "-I", "-c", _HAS_TORCH], check=False).returncode == 0:
            return python
    return None


def measured(torch: Any) -> dict[str, Any]:
    """Best seconds of a few rounds for each GPU and for the processor; or the error that CUDA ends with."""
    told: dict[str, Any] = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "gpus": []}
    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            told["gpus"].append(_gpu(torch, f"cuda:{index}"))
    except (RuntimeError, AssertionError) as error:
        return {**told, "error": f"CUDA fails: {str(error)[:300]}"}
    data = bytes(BYTES)
    told["cpu_s"] = _best(lambda: hashlib.sha256(data).digest())
    return told


def _gpu(torch: Any, device: str) -> float:
    ones = torch.ones((SIZE, SIZE), dtype=torch.float16, device=device)

    def products() -> None:
        for _ in range(PRODUCTS):
            result = ones @ ones
        torch.cuda.synchronize(device)
        if not bool((result == SIZE).all()):
            raise RuntimeError(f"{device} computes wrong numbers")

    return _best(products)


def _best(work: Callable[[], object]) -> float:
    """The first round also warms up."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
