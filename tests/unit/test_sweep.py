"""A sweep: one run a seed, and a mean with an interval that is the right one."""

import math
import re
from xml.etree import ElementTree as ET

import pytest
from made_run import make_run

from nested_rl.errors import SettingsError
from nested_rl.experiment import Experiment
from nested_rl.run import Run
from nested_rl.sweeps import Mean, Sweep, sweep, t_quantile


@pytest.fixture
def asked(monkeypatch):
    """Experiment.run writes a made run, as long as its seed says: 2 steps and one more a seed."""
    calls = []

    def run(self, steps=25, *, seed, out, **arguments):
        calls.append((self, seed, arguments))
        size = {"groups_per_step": 1, "group_size": 2}
        return Run(make_run(out, steps=2 + seed, seed=seed, evals=False, **size).path)

    monkeypatch.setattr(Experiment, "run", run)
    return calls


def column(run, key="reward/mean"):
    return [row[key] for row in run.metrics]


def test_one_run_a_seed(asked, tmp_path):
    found = sweep(Experiment(), seeds=3, out=tmp_path, steps=7, quiet=True)
    assert [run.path for run in found.runs] == [tmp_path / f"seed-{n}" for n in range(3)]
    assert [(seed, given) for _, seed, given in asked] == [(n, {"quiet": True}) for n in range(3)]


def test_chosen_seeds_and_an_experiment_for_each(asked, tmp_path):
    made = {}
    found = sweep(lambda seed: made.setdefault(seed, Experiment()), seeds=(4, 1), out=tmp_path)
    assert [run.path.name for run in found.runs] == ["seed-4", "seed-1"]
    assert [who is made[seed] for who, seed, _ in asked] == [True, True]


def test_means_are_over_the_runs_that_came_so_far(asked, tmp_path):
    found = sweep(Experiment(), seeds=3, out=tmp_path)
    columns = [column(run) for run in found.runs]
    by_step = found.by_step()
    assert [m.n for m in by_step] == [3, 3, 2, 1]
    assert by_step[0] == Mean.of([c[0] for c in columns]) == found.start()
    assert by_step[2] == Mean.of([c[2] for c in columns[1:]])
    assert math.isnan(by_step[3].low)
    assert found.end() == Mean.of([sum(c[-3:]) / len(c[-3:]) for c in columns])
    assert found.gain().value == pytest.approx(found.end().value - found.start().value)
    valid = found.by_step("validation/valid")
    assert valid[0].value == pytest.approx(sum(column(r, "validation/valid")[0] for r in found.runs) / 3)
    assert str(found).startswith(f"reward over 3 runs: {found.start()} at the start → {found.end()} at the end")


def test_the_interval_is_students():
    # By hand: mean 3, deviation 1, n = 3, t(2) = 4.3027.
    mean = Mean.of([2.0, 3.0, 4.0, math.nan])
    assert (mean.n, mean.value) == (3, 3.0)
    assert mean.high - 3 == pytest.approx(4.3027 / math.sqrt(3))
    assert 3 - mean.low == pytest.approx(4.3027 / math.sqrt(3))
    assert str(Mean.of([])) == "unknown"
    assert str(Mean.of([0.5])) == "0.500"


@pytest.mark.parametrize(
    ("freedom", "value"),
    [(1, 12.7062), (9, 2.26216), (10, 2.22814), (15, 2.13145), (30, 2.04227), (100, 1.98397), (10**6, 1.95997)],
)
def test_quantiles_are_those_of_the_tables(freedom, value):
    assert t_quantile(freedom) == pytest.approx(value, abs=2e-4)


def test_the_picture_is_an_svg_and_always_the_same(asked, tmp_path):
    found = sweep(Experiment(), seeds=3, out=tmp_path / "runs")
    picture = found.plot(tmp_path / "sweep.svg")
    tree = ET.parse(picture)
    words = " ".join(node.text or "" for node in tree.iter("{http://www.w3.org/2000/svg}text"))
    assert "reward/mean" in words
    assert "3 runs" in words
    assert picture.read_bytes() == found.plot(tmp_path / "again.svg").read_bytes()
    assert picture.read_bytes() != found.plot(tmp_path / "valid.svg", "validation/valid").read_bytes()
    Sweep(runs=found.runs[:1]).plot(tmp_path / "one.svg")


def curves(path):
    """x of the end of every line that is drawn as a curve, by its width: runs are thin, the mean is not."""
    ends = {"0.7": [], "2": []}
    for node in ET.parse(path).iter("{http://www.w3.org/2000/svg}path"):
        width = re.search(r"stroke-width: ([\d.]+)", node.get("style", ""))
        if width and width[1] in ends:
            ends[width[1]].append(float(re.findall(r"L ([\d.]+)", node.get("d"))[-1]))
    return ends["0.7"], ends["2"]


def test_the_mean_is_drawn_as_far_as_every_run_has_come(asked, tmp_path):
    found = sweep(Experiment(), seeds=3, out=tmp_path / "runs")  # of 2, 3 and 4 steps
    runs, (mean,) = curves(found.plot(tmp_path / "uneven.svg"))
    assert mean == runs[0] < runs[1] < runs[2]
    assert "up to step 2, which all have done" in (tmp_path / "uneven.svg").read_text()
    Sweep(runs=[found.runs[1], found.runs[1]]).plot(tmp_path / "even.svg")
    assert "up to step" not in (tmp_path / "even.svg").read_text()
    late = Run(make_run(tmp_path / "late", steps=2, done=0, evals=False).path)
    Sweep(runs=[*found.runs[1:], late]).plot(tmp_path / "begun.svg")
    assert "2 runs: mean, and 95 % interval over runs, up to step 3" in (tmp_path / "begun.svg").read_text()


def test_runs_of_different_families_are_told_apart_in_words_and_in_the_picture(asked, tmp_path):
    one, two = sweep(Experiment(), seeds=2, out=tmp_path).runs
    assert Sweep(runs=[one, two]).cautions == ()
    told = two.path / "run.toml"
    told.write_text(told.read_text().replace('"dispatch"', '"triage"'))
    mixed = Sweep(runs=[one, Run(two.path)])
    families = "calc_chain, string_pipeline, dispatch / calc_chain, string_pipeline, triage"
    assert mixed.cautions == (f"They were trained on different families ({families}).",)
    assert str(mixed).endswith(f"They were trained on different families ({families})")
    picture = " ".join(node.text or "" for node in ET.parse(mixed.plot(tmp_path / "mixed.svg")).iter())
    assert "trained on different families" in picture


def test_wrong_use_is_told_before_anything_runs(asked, tmp_path):
    part = object()
    for experiment, arguments, words in (
        (Experiment(trainer=part), {}, "a trainer belongs to one run"),
        (Experiment(queue=part), {"seeds": 2}, "a queue belongs to one run"),
        (Experiment(), {"seeds": 0}, "at least 1"),
        (Experiment(), {"seeds": (1, 1)}, "different"),
        (Experiment(), {"seed": 1}, "give `seeds`"),
    ):
        with pytest.raises(SettingsError, match=words):
            sweep(experiment, out=tmp_path, **arguments)
    assert asked == []
    sweep(Experiment(trainer=part), seeds=(3,), out=tmp_path)
    assert len(asked) == 1


def test_what_cannot_be_drawn_is_told(asked, tmp_path):
    found = sweep(Experiment(), seeds=1, out=tmp_path)
    with pytest.raises(SettingsError, match=r"end its name with \.svg"):
        found.plot(tmp_path / "a.png")
    with pytest.raises(SettingsError, match="no run has a metric 'reward/maen'"):
        found.by_step("reward/maen")
    empty = Sweep(runs=[Run(make_run(tmp_path / "empty", steps=2, done=0, evals=False).path)])
    assert "none of which has done a step" in str(empty)
    with pytest.raises(SettingsError, match="nothing to draw"):
        empty.plot(tmp_path / "a.svg")


def test_a_real_sweep_goes_on_where_it_was(tmp_path):
    briefly = {"steps": 1, "groups_per_step": 1, "group_size": 2, "eval_every": 0, "quiet": True}
    first = sweep(Experiment(), seeds=1, out=tmp_path, **briefly)
    before = (first.runs[0].path / "metrics.jsonl").stat().st_mtime_ns
    both = sweep(Experiment(), seeds=2, out=tmp_path, **briefly)
    assert (first.runs[0].path / "metrics.jsonl").stat().st_mtime_ns == before
    assert both.by_step()[0] == Mean.of([column(run)[0] for run in both.runs])
    assert all(run.finished for run in both.runs)
