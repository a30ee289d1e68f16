"""Everything here needs verifiers; without it the tests are skipped, with the reason."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import sys

import pytest

from nested_rl.inner.prime_rl.taskset import HARNESS, package

_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items):
    found = importlib.util.find_spec("verifiers")
    missing = found is None or found.origin is None  # this folder has that name too
    for item in items:
        if "tests/verifiers" in item.path.as_posix():
            item.add_marker(pytest.mark.verifiers)
            if missing:
                item.add_marker(pytest.mark.skip(reason="verifiers is not installed: make test-verifiers"))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Write a job's package where verifiers finds it; gives the taskset's id. What it started ends with the test."""
    modules = []

    def install(code, family="calc_chain", **data):
        name = f"job-{next(_NUMBERS)}"
        made = package({"job.toml": "", "environment.py": code, **data}, family=family, name=name)
        for path, text in made.files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        modules.append(name.replace("-", "_"))
        importlib.invalidate_caches()
        return name

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for module in modules:
        with contextlib.suppress(KeyError):
            sys.modules[f"{module}.taskset"]._asking.close()


@pytest.fixture
def environment():
    """A taskset's environment as prime-rl's TOML makes it."""

    def load(taskset, **settings):
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, "max_turns": 1}
        return load_environment(resolve_env_config({"taskset": {"id": taskset, **settings}, "agent": agent}))

    return load


@pytest.fixture
def evaluate(environment):
    """Roll every task out against a server: one trace a task."""

    async def run(taskset, url, **settings):
        import asyncio

        import verifiers.v1 as vf

        env = environment(taskset, **settings)
        asked = vf.ModelContext(client=vf.EvalClientConfig(base_url=url), model="fake", sampling=vf.SamplingConfig())
        async with env.serving():
            episodes = await asyncio.gather(*(env.run_episode(task, asked) for task in env.taskset))
        return [trace for episode in episodes for trace in episode.traces]

    return run
