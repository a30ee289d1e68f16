"""The table of what jobs take on each kind of machine."""

import json
import random

import pytest

from nested_rl import matrix
from nested_rl.clock import VirtualClock
from nested_rl.compute import runpod
from nested_rl.compute.pool_market import JOB_S, Market
from nested_rl.compute.provider import Candidate, Provider
from nested_rl.compute.runpod import RunpodCompute
from nested_rl.errors import RunDirError, SettingsError
from nested_rl.matrix import Row


class Nobody(Provider):
    """Is never asked."""

    async def _never(self, *_: object) -> None:
        raise AssertionError

    create = list = get = terminate = prices = close = _never


A40 = Row(
    candidate="NVIDIA A40",
    base="small",
    jobs=4,
    succeeded=3,
    seconds=600.0,
    usd=0.1,
    usd_per_hour=0.45,
    peak_memory_gib=11.5,
    measured="2026-12-01T00:00:00Z",
    source="bench-gpus",
    machines=("pod-1",),
    errors=("MachineLost: gone",),
)
NEVER = Row(candidate="2x NVIDIA RTX A5000", base="small", jobs=1, succeeded=0)


def test_what_is_written_is_read(tmp_path):
    matrix.write(tmp_path / "new" / "gpus.json", [A40, NEVER])
    assert set(matrix.read(tmp_path / "new" / "gpus.json")) == {A40, NEVER}
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["gpus.json"]
    assert (A40.success, NEVER.success) == (0.75, 0.0)


def test_a_row_is_measured_again_and_the_others_stay(tmp_path):
    matrix.write(tmp_path / "gpus.json", [A40, NEVER])
    again = Row(candidate="NVIDIA A40", base="small", jobs=1, succeeded=1, seconds=500.0)
    other = Row(candidate="NVIDIA A40", base="large", jobs=1, succeeded=1, seconds=900.0)
    matrix.write(tmp_path / "gpus.json", [again, other])
    assert set(matrix.read(tmp_path / "gpus.json")) == {again, other, NEVER}


def test_what_did_not_succeed_replaces_nothing_that_did(tmp_path):
    failed = Row(candidate="NVIDIA A40", base="small", jobs=1, succeeded=0, errors=("gone",))
    again = Row(candidate=NEVER.candidate, base="small", jobs=2, succeeded=0)
    matrix.write(tmp_path / "gpus.json", [A40, NEVER])
    matrix.write(tmp_path / "gpus.json", [failed, again])
    assert set(matrix.read(tmp_path / "gpus.json")) == {A40, again}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 1}',
        '{"format": 9, "rows": []}',
        '{"format": 1, "rows": [{"candidate": "x"}]}',
        '{"format": 1, "rows": [{"candidate": "x", "base": "b", "jobs": 0, "succeeded": 0}]}',
        '{"format": 1, "rows": [{"candidate": "x", "base": "b", "jobs": 1, "succeeded": 0, "usd": NaN}]}',
    ],
)
def test_what_is_no_table_is_told_by_its_name(tmp_path, text):
    (tmp_path / "gpus.json").write_text(text)
    with pytest.raises(SettingsError, match=r"gpus\.json"):
        matrix.read(tmp_path / "gpus.json")
    with pytest.raises(SettingsError, match=r"gpus\.json"):
        matrix.write(tmp_path / "gpus.json", [A40])  # what is there is not written over
    assert (tmp_path / "gpus.json").read_text() == text


def test_a_table_that_is_not_there_or_cannot_be(tmp_path):
    with pytest.raises(SettingsError, match="bench-gpus"):
        matrix.read(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="cannot be written"):
        matrix.write(tmp_path / "file" / "gpus.json", [A40])


def test_seconds_are_weighted_by_what_succeeded_and_the_unknown_has_none():
    long = Row(candidate="1x NVIDIA A40 (secure)", base="large", jobs=1, succeeded=1, seconds=1000.0)
    assert matrix.paid_seconds([A40, long, NEVER]) == {"1x NVIDIA A40": 700.0}


def test_a_pool_starts_from_the_table():
    kinds = [*Candidate.read("NVIDIA A40"), *Candidate.read("2x NVIDIA A40"), *Candidate.read("NVIDIA RTX A5000")]
    market = Market(kinds, clock=VirtualClock(), job_s=matrix.paid_seconds([A40]), chance=random.Random(0))
    assert [market.records[one].seconds for one in kinds] == [600.0, 600.0, JOB_S, JOB_S, JOB_S, JOB_S]


def test_rented_machines_start_from_it(tmp_path, monkeypatch):
    matrix.write(tmp_path / "gpus.json", [A40])
    monkeypatch.setattr(runpod, "library", lambda: None)
    compute = RunpodCompute(["NVIDIA A40"], matrix=tmp_path / "gpus.json", folder=tmp_path, provider=Nobody())
    assert {record.seconds for record in compute._opened().market.records.values()} == {600.0}
    with pytest.raises(SettingsError, match=r"none\.json"):
        RunpodCompute(["NVIDIA A40"], matrix=tmp_path / "none.json")


def test_it_is_shown_with_what_nobody_knows():
    lines = matrix.table([A40, NEVER]).splitlines()
    assert lines[2] == "| NVIDIA A40 | small | 4 | 75% | 600 | 0.1000 | 0.450 | 11.5 | 2026-12-01 |"
    assert lines[3] == "| 2x NVIDIA RTX A5000 | small | 1 | 0% | ? | ? | 0.000 | ? |  |"


def test_the_file_says_what_it_is(tmp_path):
    matrix.write(tmp_path / "gpus.json", [A40])
    data = json.loads((tmp_path / "gpus.json").read_text())
    assert data["format"] == 1
    assert data["rows"][0] == {
        "candidate": "NVIDIA A40",
        "base": "small",
        "jobs": 4,
        "succeeded": 3,
        "seconds": 600.0,
        "usd": 0.1,
        "usd_per_hour": 0.45,
        "peak_memory_gib": 11.5,
        "measured": "2026-12-01T00:00:00Z",
        "source": "bench-gpus",
        "machines": ["pod-1"],
        "errors": ["MachineLost: gone"],
    }
