"""What the example jobs become for prime-rl, on machines of four kinds: golden files, checked against the schema of the pinned version."""

import json
import tomllib

import jsonschema
import pytest
from attrs import evolve
from prime_rl_material import CASES, EXAMPLES, GOLDEN, SURFACE, config, name, rendered

from nested_rl.inner.prime_rl.keys.allowed import ARGUMENTS, KINDS, OPEN, Several
from nested_rl.inner.prime_rl.keys.denied import DENIED, MOVED
from nested_rl.inner.prime_rl.keys.reading import NAME, read, rule_of
from nested_rl.inner.prime_rl.keys.render import render
from nested_rl.inner.prime_rl.memory import Placement
from nested_rl.inner.prime_rl.order import RUN_FOLDER, Package
from nested_rl.jobs.surface import Key

SCHEMA = json.loads((GOLDEN / "rlconfig.schema.json").read_text("utf-8"))
"""RLConfig.model_json_schema() of the pinned commit, without descriptions."""
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)
TOMLS = sorted(GOLDEN.glob("*.toml"))


def faults(text: str) -> list[str]:
    """What the schema says. Its `env` is that of any taskset; what our one taskset is told is compared on its own."""
    tree = tomllib.loads(text)
    (source,) = tree["orchestrator"]["train"]["source"]
    agent = source.pop("env")["agent"]
    assert agent["harness"] == {"id": "nested-rl-inline"}
    assert agent["runtime"] == {"type": "subprocess"}
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in VALIDATOR.iter_errors(tree)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: name(*case))
def test_the_golden_file_is_what_is_rendered_now(case):
    ending, text = rendered(*case)
    there = [path for path in GOLDEN.glob(f"{name(*case)}.*") if path.name.startswith(f"{name(*case)}.t")]
    assert [path.name for path in there] == [f"{name(*case)}.{ending}"]
    assert there[0].read_text("utf-8") == text, "if this is meant: python tests/unit/prime_rl_material.py"


def test_there_is_a_file_for_every_case_and_none_besides():
    assert len(EXAMPLES) == 7
    assert {path.stem for path in GOLDEN.glob("*.t*")} == {name(*case) for case in CASES}
    refused = {path.stem.partition(".")[2] for path in GOLDEN.glob("*.txt")}
    assert refused == {"1x24.1.7B.full", "2x24.1.7B.full"}


@pytest.mark.parametrize("path", TOMLS, ids=lambda path: path.stem)
def test_every_toml_is_valid_by_the_schema(path):
    assert faults(path.read_text("utf-8")) == []


def test_the_schema_finds_what_is_wrong():
    text = TOMLS[0].read_text("utf-8")
    assert faults(text.replace("max_steps", "steps"))
    assert faults(text.replace('name = "qwen3"', 'name = "qwen99"'))
    assert faults(text.replace("group_size = 8", 'group_size = "8"'))


@pytest.mark.parametrize("path", TOMLS, ids=lambda path: path.stem)
def test_what_every_run_depends_on(path):
    tree = tomllib.loads(path.read_text("utf-8"))
    assert tree["weight_broadcast"] == {"type": "filesystem"}
    assert tree["max_steps"] > 1
    assert tree["deployment"] == {"gpus_per_node": 2, "num_train_gpus": 1, "num_infer_gpus": 1}
    assert f"{tree['output_dir']}/{tree['run']['name']}" == RUN_FOLDER
    assert "ckpt" not in tree
    assert "monitors" not in tree
    orchestrator, server = tree["orchestrator"], tree["inference"]["vllm"]
    assert orchestrator["group_size"] > 1
    assert orchestrator["batch_size"] % orchestrator["group_size"] == 0
    assert orchestrator["concurrency"]["max_inflight"] >= orchestrator["group_size"]
    assert orchestrator["train"]["sampling"]["max_completion_tokens"] < tree["seq_len"] <= server["max_model_len"]
    assert ("lora" in tree["trainer"].get("model", {})) == path.stem.endswith(".lora")
    assert ("kv_cache_memory_bytes" in server) == (".1x" in path.stem)
    assert tree["inference"]["server"]["host"] == "127.0.0.1"


# ---------------------------------------------------------------- every key that a job may set


def extremes(rule: Key | Several):
    if isinstance(rule, Several):
        return [list(rule.choices), [rule.choices[0]]]
    if rule.choices:
        return list(rule.choices)
    return [True, False] if rule.type is bool else [rule.type(rule.low), rule.type(rule.high), rule.default]


def nested(path: str, value) -> dict:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def merged(one: dict, other: dict) -> dict:
    both = {**one, **other}
    both |= {k: merged(one[k], other[k]) for k in one.keys() & other.keys() if isinstance(one[k], dict)}
    return both


def settings(path: str, value) -> dict:
    """[prime_rl] with one key, and the type of its table that has it."""
    table = nested(path.replace("*", "some"), value)
    for of, kinds in KINDS.items():
        kind = next((kind for kind, keys in kinds.items() if path.removeprefix(f"{of}.") in keys), None)
        if kind is not None:
            table = merged(table, nested(f"{of}.type", kind))
    if ".pools.*." in path:
        other = path.replace("threshold", "x").replace("weight", "threshold").replace("x", "weight")
        table = merged(table, nested(other.replace("*", "some"), 0.5))
    return table


@pytest.mark.parametrize("path", OPEN)
def test_an_open_key_is_one_of_prime_rl_with_all_of_its_values(path):
    base = config("calc_chain")
    for value in extremes(OPEN[path]):
        table = settings(path, value)
        assert list(read(table)) == []
        said = evolve(base, tables={**base.tables, NAME: table})
        package = Package(taskset="job-example", dialect="plain", files={})
        placement = Placement(devices="0,1", utilization=0.9)
        text = render(said, package, placement, base_path="/bases/x", harness="nested-rl-inline")
        assert faults(text) == [], value


# ---------------------------------------------------------------- every key that there is


def leaves(node, path=(), seen=()):
    """Dotted paths of everything in the schema."""
    if "$ref" in node:
        kind = node["$ref"].rpartition("/")[2]
        if kind in seen:
            return
        yield from leaves(SCHEMA["$defs"][kind], path, (*seen, kind))
    for below in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from leaves(below, path, seen)
    for key, below in node.get("properties", {}).items():
        yield from leaves(below, (*path, key), seen)
    if "properties" not in node and "$ref" not in node:
        yield ".".join(path)
    if "$ref" in node.get("items", {}):
        yield from leaves(node["items"], path, seen)


ALL = sorted(set(leaves(SCHEMA)) - {""})


def test_every_key_of_prime_rl_is_open_or_refused_with_a_reason():
    assert len(ALL) > 600
    above = lambda path: any(known.startswith(f"{path}.") for known in OPEN)  # noqa: E731
    refused = lambda path: any(path == known or path.startswith(f"{known}.") for known in DENIED)  # noqa: E731
    stray = [p for p in ALL if not (rule_of(p) or p in MOVED or refused(p) or above(p) or p == ARGUMENTS)]
    assert stray == []


def test_what_is_open_refused_or_moved_exists():
    known = set(ALL) | {path.rpartition(".")[0] for path in ALL}
    tables = {".".join(path.split(".")[:depth]) for path in known for depth in range(1, 9)}
    vllm = [
        path for path in OPEN if path.startswith("inference.vllm.")
    ]  # passed on, so not all of them are listed there
    assert not [path for path in OPEN if path not in tables and "*" not in path and path not in vllm]
    older = {"wandb", "orchestrator.env", "orchestrator.train.env", "inference.vllm.kv_cache_memory_bytes"}
    assert {path for path in DENIED if path not in tables} == older
    assert {path for path in MOVED if path not in tables} == {"orchestrator.train.source.env.agent.max_turns"}


def test_the_surface_takes_every_example():
    assert all(config(example).base in SURFACE.bases for example in EXAMPLES)
