"""Whatever stands in [prime_rl]: it is told in plain words, or it is taken and rendered."""

import tomllib

import tomli_w
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from prime_rl_material import SURFACE, config

from nested_rl.inner.prime_rl.keys.allowed import OPEN
from nested_rl.inner.prime_rl.keys.denied import DENIED, MOVED
from nested_rl.inner.prime_rl.keys.reading import NAME, flat
from nested_rl.inner.prime_rl.keys.render import render
from nested_rl.inner.prime_rl.memory import Placement
from nested_rl.inner.prime_rl.order import Package
from nested_rl.jobs.folder import parse

WORDS = sorted({part for path in (*OPEN, *DENIED, *MOVED) for part in path.split(".")})
names = st.one_of(st.sampled_from(WORDS), st.text(max_size=6))
values = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.datetimes(), st.lists(st.integers(), max_size=2)
)
tables = st.recursive(values, lambda below: st.dictionaries(names, below, max_size=3), max_leaves=12)
known = st.dictionaries(st.sampled_from([path for path in OPEN if "*" not in path]), values, max_size=4)
JOB = {"model": {"base": "Qwen/Qwen3-0.6B"}, "training": {"steps": 40, "learning_rate": 1e-5}}
CODE = "def examples(rng, n): ...\ndef reward(prompt, completion, answer): ...\n"


def taken_or_told(table):
    text = tomli_w.dumps({**JOB, NAME: table})
    found, problems = parse({"job.toml": text, "environment.py": CODE}, SURFACE)
    assert (found is None) == bool(problems)
    for problem in problems:
        assert problem.message.isprintable()
        assert problem.where.isprintable()
        assert 0 < len(problem.brief) <= 40
    if found is not None:
        said = evolve(config("calc_chain"), tables=found.tables)
        package, placement = (
            Package(taskset="job", dialect="plain", files={}),
            Placement(devices="0,1", utilization=0.9),
        )
        tree = tomllib.loads(render(said, package, placement, base_path="/b", harness="h"))
        rendered = flat({name: part for name, part in tree.items() if name in ("trainer", "orchestrator", "inference")})
        for path, value in flat(found[NAME]).items():
            assert value in ({}, rendered.get(path)), path


@settings(deadline=None)
@given(st.dictionaries(names, tables, max_size=4))
def test_any_table(table):
    taken_or_told(table)


@settings(deadline=None)
@given(known)
def test_open_keys_with_any_values(chosen):
    table: dict = {}
    for path, value in chosen.items():
        *above, name = path.split(".")
        here = table
        for part in above:
            here = here.setdefault(part, {})
        here[name] = value
    taken_or_told(table)
