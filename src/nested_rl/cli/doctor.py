"""`doctor`: whether this computer has what a run needs, and what to do about what it lacks."""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from attrs import asdict, frozen
from cyclopts import Parameter
from packaging.requirements import Requirement

Verdict: TypeAlias = Literal["ok", "note", "bad"]

KEYS: Mapping[str, str] = {
    "TINKER_API_KEY": "TinkerTrainer",
    "RUNPOD_API_KEY": "RunpodCompute",
    "OPENROUTER_API_KEY": "a frozen policy on openrouter.ai",
    "OPENAI_API_KEY": "a frozen policy elsewhere",
    "HF_TOKEN": "publishing",
    "WANDB_API_KEY": "Weights & Biases",
}
"""Variables that hold a key, and what needs it. Whether they are set is told, never what they hold."""
CORE = ("attrs", "cattrs", "cyclopts", "httpx", "jinja2", "matplotlib", "numpy", "rich", "safetensors", "tenacity")
ROOM_GIB = 1.0
"""A pilot leaves about a hundredth of that; less free disk than this makes any run a gamble."""


@frozen(kw_only=True)
class Check:
    """One finding. "note" is worth knowing, "bad" stops a run; `hint` says what to do."""

    name: str
    verdict: Verdict
    found: str
    hint: str = ""


def doctor(*, out: Path = Path("runs"), as_json: Annotated[bool, Parameter(name="--json")] = False) -> int:
    """Check that this computer has what a run needs.

    Python, packages, optional stacks and their versions, keys, shipped models, sandbox, cores, GPUs, disk. Exit code 1 if a local
    run would fail.

    Args:
        out: Where runs will be written.
        as_json: Print JSON.
    """
    checks = list(examine(out))
    if as_json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        marks = {"ok": "ok  ", "note": "note", "bad": "BAD "}
        for check in checks:
            print(f"{marks[check.verdict]}  {check.name}: {check.found}" + (f" ({check.hint})" if check.hint else ""))
    return int(any(check.verdict == "bad" for check in checks))


def examine(out: Path) -> Iterator[Check]:
    """Every check, in an order in which a failure explains those after it."""
    yield _python()
    yield _packages()
    yield from _extras()
    yield from _models()
    yield _sandbox()
    yield _cores()
    yield _gpus()
    yield from _keys()
    yield from _disk(out)


def _python() -> Check:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check(
        name="python", verdict="ok" if good else "bad", found=found, hint="" if good else "needs 3.11 or newer"
    )


def _packages() -> Check:
    versions = {name: _version(name) for name in ("nested-rl", *CORE)}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        hint = "pip install nested-rl"
        return Check(name="packages", verdict="bad", found=f"missing: {', '.join(missing)}", hint=hint)
    return Check(
        name="packages", verdict="ok", found=", ".join(f"{name} {version}" for name, version in versions.items())
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> Iterator[Check]:
    """Optional stacks, by what the installed package says of itself: what is missing, and what is of a version not tried."""
    wanted: dict[str, list[Requirement]] = {}
    for line in metadata.requires("nested-rl") or ():
        requirement = Requirement(line)
        named = re.search(r"extra == ['\"]([\w-]+)['\"]", str(requirement.marker))
        if named and requirement.name != "nested-rl":
            wanted.setdefault(named[1], []).append(requirement)
    for extra, requirements in sorted(wanted.items()):
        yield _extra(extra, requirements)


def _extra(extra: str, requirements: Sequence[Requirement]) -> Check:
    versions = {wanted.name: _version(wanted.name) for wanted in requirements}
    missing = [name for name, version in versions.items() if version is None]
    untried = [w for w in requirements if (v := versions[w.name]) is not None and not w.specifier.contains(v, True)]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    install, hint = f"pip install 'nested-rl[{extra}]'", ""
    if missing:
        found = f"not installed: {', '.join(missing)}" + (f"; {found}" if found else "")
        hint = f"optional: {install}"
    elif untried:
        hint = f"known to work: {', '.join(f'{w.name}{w.specifier}' for w in untried)}; {install}"
    return Check(name=f"extra {extra}", verdict="note" if missing or untried else "ok", found=found, hint=hint)


def _keys() -> Iterator[Check]:
    for name, part in KEYS.items():
        there = bool(os.environ.get(name))
        yield Check(
            name=f"key {name}", verdict="ok" if there else "note", found="set" if there else "not set", hint=part
        )


def _gpus() -> Check:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(name="gpus", verdict="ok", found="none", hint="none is needed here")
    asked = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name="gpus", verdict="note", found=f"{program} fails: {type(error).__name__}")
    return Check(name="gpus", verdict="ok", found="; ".join(said.splitlines()) or "none")


def _models() -> Iterator[Check]:
    from nested_rl.errors import NestedRLError
    from nested_rl.nano.folder import load_model, weights_path

    for name in ("nano-s", "nano-m", "nano-agent"):
        hint = "reinstall the package, or run: nested-rl models build"
        try:
            folder = weights_path(name)
            model, _ = load_model(folder)
        except NestedRLError as error:
            yield Check(name=f"model {name}", verdict="bad", found=str(error), hint=hint)
            continue
        recorded = _recorded_sha256(folder)
        if recorded not in (None, hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()):
            yield Check(name=f"model {name}", verdict="bad", found="not the weights that were recorded", hint=hint)
        else:
            yield Check(name=f"model {name}", verdict="ok", found=f"{model.theta.size:,} parameters, intact")


def _recorded_sha256(folder: Path) -> str | None:
    """What the weights' file was when the model was made: beside the bases' scores, or in the model's own provenance."""
    for path in (folder.parent / "baselines.json", folder / "provenance.json"):
        if path.is_file():
            said = json.loads(path.read_text(encoding="utf-8")).get("sha256")
            found = said.get(folder.name) if isinstance(said, dict) else said
            if found is not None:
                return str(found)
    return None


def _sandbox() -> Check:
    from nested_rl.jobs.sandbox import SandboxError, Zygote

    told: Mapping[str, tuple[Verdict, str]] = {
        "namespaces": ("ok", ""),
        "seccomp": ("ok", "no namespaces here; the system-call filter alone confines agent-written code"),
        "limits": (
            "note",
            "resource limits only: jobs of a large model are refused here, unless allow_weak_sandbox is set",
        ),
    }
    zygote = Zygote()
    try:
        level = zygote.level
    except (SandboxError, OSError) as error:
        return Check(name="sandbox", verdict="bad", found=f"cannot be started: {error}")
    finally:
        zygote.close()
    verdict, hint = told[level]
    return Check(name="sandbox", verdict=verdict, found=level, hint=hint)


def _cores() -> Check:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    hint = "" if usable > 1 else "the pilot takes about twice as long as on two"
    return Check(name="cores", verdict="ok" if usable > 1 else "note", found=str(usable), hint=hint)


def _disk(out: Path) -> Iterator[Check]:
    for name, folder in (("runs", out), ("temporary files", Path(tempfile.gettempdir()))):
        there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
        free_gib = shutil.disk_usage(there).free / 2**30
        if not os.access(there, os.W_OK | os.X_OK):
            yield Check(name=name, verdict="bad", found=f"{there} cannot be written", hint="choose another folder")
        elif free_gib < ROOM_GIB:
            yield Check(name=name, verdict="bad", found=f"{free_gib:.1f} GiB free in {there}", hint="make room")
        else:
            yield Check(name=name, verdict="ok", found=f"{free_gib:.0f} GiB free in {there}")
