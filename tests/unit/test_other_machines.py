"""A run that is gone on with on other machines: the same experiment, and the journal tells the change."""

import attrs
import pytest
from supervised import World

from nested_rl.compute.local import LocalCompute
from nested_rl.compute.runpod import RunpodCompute
from nested_rl.describe import describe
from nested_rl.errors import RunMismatch
from nested_rl.experiment import MAY_CHANGE
from nested_rl.rundir import RunDir

A40 = RunpodCompute(["NVIDIA A40"], max_machines=2)


def opened(path, compute, **more):
    """The run directory as an experiment with these machines finds it: what the journal says of a change."""
    parts = {"trainer": {"name": "T"}} | ({"compute": describe(compute)} if compute is not None else {})
    run = RunDir.create(path, {"steps": 1, "parts": parts, **more}, may_change=MAY_CHANGE)
    run.close()
    assert run.spec["parts"].get("compute") == (parts.get("compute"))
    return [event["changed"] for event in run.events("compute.changed")]


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (RunpodCompute(["NVIDIA A40"], max_machines=3), {"parts.compute.max_machines": [2, 3]}),
        (RunpodCompute(["NVIDIA A40", "NVIDIA L40"], max_machines=2), None),
        (LocalCompute(1), None),
        (None, None),
    ],
)
def test_other_machines_are_the_same_experiment_and_the_journal_tells_them(tmp_path, other, changed):
    assert opened(tmp_path / "run", A40) == []
    (told,) = opened(tmp_path / "run", other)
    assert told == changed or changed is None
    assert all(name.startswith("parts.compute.") and before != now for name, (before, now) in told.items())
    assert opened(tmp_path / "run", other) == [told]
    assert len(opened(tmp_path / "run", A40)) == 2


def test_another_image_is_another_trainer(tmp_path):
    opened(tmp_path / "run", A40)
    with pytest.raises(RunMismatch, match=r"parts\.compute\.image.* that is the trainer they run"):
        opened(tmp_path / "run", RunpodCompute(["NVIDIA A40"], max_machines=3, image="other:tag"))
    assert opened(tmp_path / "run", A40) == []


def test_what_changes_results_is_refused_with_other_machines_too(tmp_path):
    opened(tmp_path / "run", A40)
    with pytest.raises(RunMismatch, match="seed") as refused:
        opened(tmp_path / "run", LocalCompute(1), seed=3)
    assert "compute" not in str(refused.value)


def test_a_whole_run_goes_on_with_other_machines(tmp_path):
    World(tmp_path / "run").run(1)
    world = World(tmp_path / "run")
    world.experiment = attrs.evolve(world.experiment, compute=LocalCompute(1))
    world.run(2)
    assert len(list(world.files.events("step.done"))) == 2
    assert len(list(world.files.events("compute.changed"))) == 1
