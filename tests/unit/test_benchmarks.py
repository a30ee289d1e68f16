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


def test_the_calibration_loop_takes_its_turn_with_the_work(monkeypatch):
    import record

    order = []
    monkeypatch.setattr(record, "calibrate", lambda: order.append("loop"))
    taken = record.interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b", "loop"] * 4
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3, record.CALIBRATION: 3}


def test_the_calibration_has_the_clock_of_what_it_is_compared_with():
    import record

    ticks = iter([0.0, 1.0, 10.0, 13.0, 20.0, 22.0])
    calibration = record.Calibration(lambda: next(ticks))
    for _ in range(3):
        calibration.take()
    assert calibration.seconds == 2.0


def test_a_ratio_is_the_median_over_rounds_not_of_medians():
    import record

    assert record.ratio([1.0, 9.0, 2.0], [1.0, 3.0, 4.0]) == 1.0
    assert record.median([1.0, 9.0, 2.0]) / record.median([1.0, 3.0, 4.0]) != 1.0


def test_blas_has_one_thread():
    import numpy as np  # noqa: F401  brings it
    import record  # noqa: F401
    from threadpoolctl import threadpool_info

    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}


def test_only_usual_arguments_are_published(capsys):
    import record

    parser = record.options("What it does.")
    parser.add_argument("--rounds", type=record.count, default=5)
    assert record.usual(parser, parser.parse_args([]))
    assert record.usual(parser, parser.parse_args(["--rounds", "1", "--write"]))
    assert not record.usual(parser, parser.parse_args(["--rounds", "1"]))
    assert "Not written" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", "0"])
    assert "must be at least 1" in capsys.readouterr().err


def test_a_comparison_with_nothing_is_an_error(tmp_path, monkeypatch):
    import moved

    monkeypatch.setattr(sys, "argv", ["moved.py", str(tmp_path / "gone")])
    with pytest.raises(SystemExit, match="no results that could be compared"):
        moved.main()


def test_a_target_that_is_missed_is_said():
    from pages.section import judged

    assert judged("speed", 2.5, 2.0, least=True, unit="×") == "speed: at least 2× wanted, 2.5× measured, met."
    assert "**not met**" in judged("speed", 1.9, 2.0, least=True)
    assert "**not met**" in judged("time", 0.04, 0.03, least=False)


def test_docs_say_what_the_results_say():
    script = BENCHMARKS / "performance.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: python benchmarks/performance.py"
