"""What there is on this machine, for the controller to look at before the first job."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import gpus, program

PACKAGES = ("prime-rl", "verifiers", "vllm", "torch", "transformers")
IMAGE_FILES = ("/etc/nested-rl-image", "/app/.image")
"""Whoever starts a machine writes the digest of its image here; the image itself cannot know it."""
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
_PLACES = """
import json, sys, sysconfig
print(json.dumps([sys.executable, f"{sys.prefix}/pyvenv.cfg", sysconfig.get_path("stdlib"), *sys.path]))
"""
_VERSIONS = """
import importlib.metadata as metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def facts(name: str, ids: str, free_mib: int, patience_s: float, user: str) -> dict[str, Any]:
    """Of the machine, and of the environment that the program `name` is installed in. The GPUs `ids` may take a while to be free.

    `open` says why a job as `user` is not kept apart from what else runs here; "" when it is.
    """
    found = program.find(name)
    try:
        gpus.freed(ids, free_mib, patience_s, pause=lambda: time.sleep(_PAUSE_S))
        cards, driver = gpus.query(), ""
    except gpus.DriverLost as lost:
        cards, driver = [], str(lost)
    return {
        "program": found or "",
        "versions": _versions(Path(found).with_name("python")) if found else {},
        "commit": _commit(Path(found).parents[2]) if found and len(Path(found).parents) > 2 else "",
        "image": next((text for text in map(_text, IMAGE_FILES) if text), ""),
        "gpus": [asdict(card) for card in cards],
        "driver_fault": driver,
        "disk_gib": shutil.disk_usage(".").free / 2**30,
        "user": _user(),
        "open": _open(found, user) if found else "nothing to run jobs with",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _versions(python: Path) -> dict[str, str]:
    told = _output(str(python), "-I", "-c", _VERSIONS, *PACKAGES)
    return dict(json.loads(told)) if told else {}


def _open(found: str, user: str) -> str:
    """Code that the job could write would run as the runner later on, when its weights are scored."""
    python = Path(found).with_name("python")
    walls = program.walls(user, isolate=False, needs=[path for path in (found, str(python)) if Path(path).exists()])
    if walls.uid is None:
        return "; ".join(walls.notes) or "jobs run as the user that starts them"
    told = _output(str(python), "-I", "-c", _PLACES)
    if not told:
        return f"{python} does not tell where its packages are"
    places = [str(Path(found).parent), *json.loads(told)]
    first = program.writable([place for place in places if Path(place).exists()], walls)
    return f"the job's user could write {first}" if first else ""


def _commit(folder: Path) -> str:
    """Of a checkout; the image has none."""
    return _output("git", "-C", str(folder), "rev-parse", "HEAD") if (folder / ".git").exists() else ""


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()[:300]
    except OSError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
