"""The guard against slowness, and the page that is made from the results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def results(*, calibration_s=0.01, ratio=2.0, **seconds):
    return {"calibration_s": calibration_s, "seconds": seconds, "ratios": {"one by another": ratio}}


def test_seconds_are_compared_as_multiples_of_the_calibration():
    from moved import moved

    slow_machine = results(calibration_s=0.02, work=1.0, other=1.0)
    before = results(work=0.5, other=0.4)
    assert list(moved(before, slow_machine, by=0.1)) == [("other [calibrations]", pytest.approx(40), pytest.approx(50))]


def test_ratios_are_compared_as_they_are():
    from moved import moved

    assert not list(moved(results(ratio=2.0), results(ratio=2.1), by=0.1))
    assert list(moved(results(ratio=2.0), results(ratio=1.7), by=0.1)) == [("one by another", 2.0, 1.7)]


def test_what_is_new_or_gone_has_not_moved():
    from moved import moved

    assert not list(moved(results(old=1.0), results(new=9.0), by=0.1))
    assert not list(moved({"rows": []}, results(new=9.0), by=0.1))


def test_the_guard_prints_what_moved(tmp_path, monkeypatch, capsys):
    import moved
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path / "now")
    for folder, seconds in (("before", 1.0), ("now", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "thing.json").write_text(json.dumps(results(work=seconds)))
    monkeypatch.setattr(sys, "argv", ["moved.py", str(tmp_path / "before")])
    moved.main()
    said = capsys.readouterr().out
    assert "thing: work" in said
    assert "+100%" in said


def test_the_calibration_loop_takes_its_turn_with_the_work():
    import record

    order = []
    taken = record.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3, record.CALIBRATION: 3}


def test_a_target_that_is_missed_is_said():
    from performance_pages import judged

    assert judged("speed", 2.5, 2.0, least=True, unit="×") == "speed: at least 2× wanted, 2.5× measured, met."
    assert "**not met**" in judged("speed", 1.9, 2.0, least=True)
    assert "**not met**" in judged("time", 0.04, 0.03, least=False)


def test_docs_say_what_the_results_say():
    script = BENCHMARKS / "performance.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: python benchmarks/performance.py"
