"""NanoInnerTrainer: the dialect, and real jobs trained on a real machine, the sound and the broken ones."""

import asyncio
import shutil

import attrs
import numpy as np
import pytest
import pytest_asyncio

from nested_rl import replies, tasks
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, InfraFault, MachineLost, SettingsError, UnknownName
from nested_rl.inner import nano_job
from nested_rl.inner.nano import ARGV, KEY, NanoInnerTrainer
from nested_rl.inner.nano_dialect import EXAMPLE, MEANING, TABLES
from nested_rl.inner.nano_grpo import Recipe
from nested_rl.jobs.folder import digest, parse
from nested_rl.nano.folder import load_model, weights_path
from nested_rl.types import Draft, Job, JobSpec, Need, Task

TASK = Task(id="t", family="dispatch", difficulty=3)
JOB = """
[model]
base = "nano-s"
[training]
steps = 3
learning_rate = 1e-3
batch_size = 32
"""
SOUND = """
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("dispatch", rng, n)

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine():
    compute = LocalCompute(max_machines=1)
    async with compute.machine(Need()) as lent:
        yield lent
    await compute.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer():
    trainer = NanoInnerTrainer()
    yield trainer
    await trainer.close()


def files(environment=SOUND, job=JOB) -> dict[str, str]:
    return {"job.toml": job, "environment.py": environment}


def job(environment=SOUND, toml=JOB, *, seed=0, delivery=1) -> Job:
    written = files(environment, toml)
    spec = JobSpec(task=TASK, files=written, digest=digest(written), base="nano-s", scale="nano", seed=seed)
    return Job(id="j", key="k", spec=spec, delivery=delivery)


# ---------------------------------------------------------------- the dialect


async def test_the_guide_teaches_every_key_and_its_example_is_valid(trainer):
    guide = trainer.guide(TASK, brief=False)
    assert EXAMPLE["environment.py"] in guide
    assert 'base = "nano-s"' in guide
    for table, keys in TABLES.items():
        assert f"[{table}]" in guide
        assert all(f"{name} = {key.wants}" in guide and MEANING[name] in guide for name, key in keys.items())
    example = {name: text.format(base="nano-s") if name == "job.toml" else text for name, text in EXAMPLE.items()}
    verdict = await trainer.validate(Draft(task=TASK, files=example))
    assert (verdict.ok, verdict.problems, verdict.base, verdict.families) == (True, (), "nano-s", ())
    assert "triage" not in guide


async def test_a_small_context_gets_one_line(trainer):
    assert trainer.guide(TASK, brief=True) == replies.README


async def test_a_recipe_has_every_key_of_job_toml():
    assert {f.name for f in attrs.fields(Recipe)} == {key for keys in TABLES.values() for key in keys} == set(MEANING)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("group_size = 1", "job.value"),
        ("group_size = 5", "job.value"),
        ("batch_size = 8", "job.value"),
        ("step = 3", "job.key"),
        ("temperature = 1.0", "job.place"),
        ("[nano]\nlora_rank = 99", "job.value"),
        ("[rollout]\nmax_tokens = 17", "job.value"),
        ("[prime_rl]\nx = 1", "job.table"),
    ],
)
async def test_what_the_dialect_refuses(trainer, line, code):
    config, problems = parse(files(job=JOB.replace("batch_size = 32", line)), trainer.surface)
    assert config is None
    assert [p.code for p in problems] == [code]


@pytest.mark.parametrize(("toml", "says"), [(JOB, False), (f"{JOB}[nano]\nkl = 0.1\n", True)])
async def test_a_valid_job_and_what_is_known_of_it(trainer, toml, says):
    verdict = await trainer.validate(Draft(task=TASK, files=files(job=toml)))
    assert (verdict.ok, verdict.base, verdict.families, verdict.advanced) == (True, "nano-s", ("dispatch",), says)


async def test_settings_that_cannot_work():
    with pytest.raises(UnknownName, match="did you mean 'nano-m'"):
        NanoInnerTrainer(["nano-mm"])
    for wrong in ({"bases": ()}, {"max_work": 0}, {"wall_s": float("nan")}):
        with pytest.raises(SettingsError):
            NanoInnerTrainer(**wrong)


# ---------------------------------------------------------------- training


async def test_a_sound_job_learns_and_leaves_an_ordinary_folder(trainer, machine):
    toml = JOB.replace("steps = 3", "steps = 12").replace("batch_size = 32", "batch_size = 64")
    made = await trainer.train(job(toml=toml), machine)
    assert len(made.curve) == 12
    assert np.mean(made.curve[-3:]) > np.mean(made.curve[:3]) + 0.15
    assert (made.base, made.kind) == ("nano-s", "full")
    assert 0 < made.work < made.work_limit == trainer.max_work
    assert "step 12: reward" in made.log
    assert made.path.startswith(machine.root)
    model, tokenizer = load_model(made.path)
    base, known = load_model(weights_path("nano-s"))
    assert (model.config, tokenizer.vocab) == (base.config, known.vocab)
    assert not np.array_equal(model.theta, base.theta)


async def test_the_same_job_and_seed_give_the_same_weights(trainer, machine):
    made = [
        await trainer.train(job(seed=seed, delivery=delivery), machine) for seed, delivery in ((5, 1), (5, 2), (6, 1))
    ]
    first, again, other = made
    assert first.digest == again.digest != other.digest
    assert (first.curve, first.work) == (again.curve, again.work)
    assert first.path != again.path


FAULTS = {
    "raises at step 3": (
        SOUND + "\ncalls = []\nold = reward\ndef reward(p, c, a):\n    calls.append(c)\n"
        "    return old(p, c, a) if len(calls) < 70 else 1 / 0\n",
        r"reward raised ZeroDivisionError in line \d+",
    ),
    "is not Python": ("def examples(", "SyntaxError"),
    "ends its process": (SOUND.replace("return float", "__import__('os')._exit(0)\n    return float"), "reward"),
    "exits": (SOUND.replace("return make", "raise SystemExit\n    return make"), "examples raised SystemExit"),
    "gives a string": (SOUND.replace("float(", "str("), "not a number"),
    "gives no rows of the kind": (SOUND.replace("return make", "return [1]\n    return make"), "not a dict"),
    "asks what no model can read": (
        SOUND.replace('return make("dispatch", rng, n)', 'return [{"prompt": "é?", "answer": "1"}] * n'),
        "does not know: 'é'",
    ),
    "blows up": (SOUND.replace("float(parse(completion) == answer)", "1e300 * len(completion)"), "diverged"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_the_job_does_wrong_is_its_own_fault(trainer, machine, fault):
    environment, words = FAULTS[fault]
    toml = f"{JOB}[nano]\nstd_normalize = false\n" if fault == "blows up" else JOB
    with pytest.raises(AgentFault, match=words):
        await trainer.train(job(environment, toml), machine)


async def test_a_job_that_prints_lies_and_garbage_is_trained_as_if_it_had_not(trainer, machine):
    lie = r'print(chr(10).join(["{\"fault\": \"x\"}", "MachineLost: CUDA ECC error", "\x00\xff"]) * 50, flush=True)'
    loud = SOUND.replace("    return float", f"    {lie}\n    return float")
    quiet, noisy = await trainer.train(job(), machine), await trainer.train(job(loud), machine)
    assert noisy.digest == quiet.digest
    assert "CUDA ECC error" in noisy.log


async def test_a_job_that_hangs_is_killed_and_the_next_one_runs(machine):
    hasty = NanoInnerTrainer(wall_s=2.5)
    endless = SOUND.replace("return float", "while True: pass\n    return float")
    with pytest.raises(AgentFault, match=r"more than 2\.5 s and was killed"):
        await hasty.train(job(endless), machine)
    assert len((await hasty.train(job(), machine)).curve) == 3


async def test_a_program_that_dies_is_a_lost_machine(trainer, machine):
    endless = SOUND.replace("return float", "while True: pass\n    return float")
    training = asyncio.create_task(trainer.train(job(endless), machine))
    await asyncio.sleep(0.3)
    program = await machine.resident(KEY, ARGV)
    await program.kill()
    with pytest.raises(MachineLost):
        await training
    assert len((await trainer.train(job(), machine)).curve) == 3


async def test_cancelling_a_training_leaves_nothing_behind(trainer, machine):
    endless = SOUND.replace("return float", "while True: pass\n    return float")
    training = asyncio.create_task(trainer.train(job(endless), machine))
    await asyncio.sleep(0.3)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    assert len((await trainer.train(job(delivery=9), machine)).curve) == 3


async def test_trouble_of_our_own_is_not_the_jobs_fault(trainer, machine):
    class Full:
        """The machine, but with a root that cannot be written."""

        id, root, resident = machine.id, "/proc/nowhere", machine.resident

    with pytest.raises(InfraFault, match="nano-job on"):
        await trainer.train(job(), Full())


async def test_a_job_over_its_work_limit_is_stopped(machine):
    with pytest.raises(AgentFault, match="work limit"):
        await NanoInnerTrainer(max_work=1e6).train(job(), machine)


async def test_questions_of_an_evaluation_are_not_trained_on(trainer, machine):
    (family,) = tasks.load("dispatch", scale="nano")
    hidden = family.eval_set(TASK, "hidden", salt="s", n=2).items
    rows = [{"prompt": i.prompt, "answer": i.answer} for i in hidden]
    made = await trainer.train(job(SOUND.replace("return make(", f"return {rows} + make(")), machine)
    assert "12 rows asked, 6 of them held out" in made.log


async def test_questions_of_a_family_of_ones_own_are_recognised_on_the_machine_too(machine, tmp_path):
    (dispatch,) = tasks.load("dispatch", scale="nano")
    folder = tmp_path / "routing"
    shutil.copytree(dispatch.card.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    trainer = NanoInnerTrainer()
    trainer.bind(tasks.load(folder, scale="nano"))
    verdict = await trainer.validate(Draft(task=TASK, files=files()))
    assert set(verdict.families) == {"dispatch", "routing"}
    made = await trainer.train(job(), machine)
    assert " 0 of them held out" not in made.log  # a quarter of them are, by the other name
    await trainer.close()


async def test_jobs_may_ask_the_kit_for_a_family_of_ones_own(machine, tmp_path):
    (dispatch,) = tasks.load("dispatch", scale="nano")
    folder = tmp_path / "routing"
    shutil.copytree(dispatch.card.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    asked = files(SOUND.replace('"dispatch"', '"routing"'))
    trainer = NanoInnerTrainer()
    (problem,) = (await trainer.validate(Draft(task=TASK, files=asked))).problems
    assert problem.code == "examples.family"
    trainer.bind(tasks.load(folder, scale="nano"))  # the sandbox that runs already is replaced
    assert (await trainer.validate(Draft(task=TASK, files=asked))).problems == ()
    made = await trainer.train(job(asked["environment.py"]), machine)
    assert "12 rows asked" in made.log
    assert await trainer.train(job(), machine)  # built-in ones are still known
    await trainer.close()


async def test_the_environment_is_dead_before_a_checkpoint_is_written(monkeypatch, tmp_path):
    alive = []
    spawn, write = nano_job.Zygote.spawn, nano_job.write

    def watched(zygote, *args):
        alive.append(spawn(zygote, *args))
        return alive[-1]

    def written(*args):
        with pytest.raises(InfraFault, match="closed"):
            alive[0].examples(0, 1)
        return write(*args)

    monkeypatch.setattr(nano_job.Zygote, "spawn", watched)
    monkeypatch.setattr(nano_job, "write", written)
    shop = nano_job.Shop()
    recipe = {name: key.default for keys in TABLES.values() for name, key in keys.items()}
    question = {
        "base": "nano-s",
        "files": files(),
        "seed": 0,
        "work_limit": 1e9,
        "families": [],
        "out": str(tmp_path / "o"),
    }
    with shop.zygote:
        told = shop.answer({**question, "recipe": recipe | {"steps": 1, "learning_rate": 1e-3, "batch_size": 16}})
    assert told["digest"]
    assert len(alive) == 1
