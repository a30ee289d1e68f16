"""PrimeRLTrainer: its guide and examples, what it needs of machines, and the orders that it gives."""

import asyncio
import json
import os
import tomllib

import pytest
from attrs import evolve
from prime_rl_material import CASES, EXAMPLES, GOLDEN, files, name

from nested_rl import cli, parts, tasks, weights
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, InfraFault, SettingsError
from nested_rl.inner.prime_rl import PrimeRLTrainer, Shape, guide, pin, trainer
from nested_rl.inner.prime_rl.keys.allowed import MEANING, OPEN, TABLES
from nested_rl.inner.prime_rl.memory import SHAPES, least, place, trainer_gib
from nested_rl.interfaces import Machine
from nested_rl.jobs.folder import digest
from nested_rl.types import Completed, Draft, Item, Job, JobSpec, Need, Task

TASK = Task(id="t", family="calc_chain", difficulty=4)
FULL = tasks.load(scale="full")


@pytest.fixture(scope="module")
def prime():
    made = PrimeRLTrainer()
    yield made
    asyncio.run(made.close())


class Asked(Machine):
    """A machine whose driver knows `mib`."""

    id, root = "asked", "/lease"

    def __init__(self, *mib, returncode=0):
        self.mib, self.returncode = mib, returncode

    async def run(self, argv, *, env=None, timeout_s=None):
        assert argv == trainer.GPUS
        return Completed(returncode=self.returncode, stdout="".join(f"{mib}\n" for mib in self.mib))

    start = put = get = forward = resident = None


def spec(example="calc_chain", **changes):
    written = {**files(example), **changes}
    family = example.removesuffix("_taskset")
    return JobSpec(
        task=Task(id="t", family=family, difficulty=4),
        files=written,
        digest=digest(written),
        base="Qwen/Qwen3-1.7B",
        scale="full",
        seed=7,
        timeout_s=1000.0,
    )


def tiny(**training):
    lines = "\n".join(f"{key} = {value}" for key, value in {"steps": 2, "learning_rate": 1e-5, **training}.items())
    return f'[model]\nbase = "Qwen/Qwen3-1.7B"\n[training]\n{lines}\n'


# ---------------------------------------------------------------- what an agent reads, and the examples


def test_the_guide_tells_the_default_of_each_type_and_the_forms_that_are_tried(prime):
    text = prime.guide(TASK, brief=False)
    told = [line.partition(" (")[2] for line in text.splitlines() if "trainer.optim.betas2 =" in line]
    assert told == ["default 0.999) [adamw]", "default 0.95) [muon]"]
    assert text.count("trainer.optim.betas1 =") == 1
    assert "from 0 to 2147483647 (default 42) [difficulty_pool]" in text
    assert r"'Answer: 72', '<answer>72</answer>', '\boxed{72}'" in text


@pytest.mark.parametrize("dialect", [guide.PLAIN, pytest.param(guide.NATIVE, marks=pytest.mark.verifiers)])
async def test_the_examples_of_the_guide_are_valid(prime, dialect):
    if dialect is guide.NATIVE:
        pytest.importorskip("verifiers.v1", reason="verifiers is not installed: make test-verifiers")
    full = prime.guide(TASK, brief=False)
    written = guide.example(dialect, prime.bases[0])
    assert all(text in full for text in written.values())
    verdict = await prime.validate(Draft(task=TASK, files=written))
    assert (verdict.ok, verdict.problems) == (True, ())
    assert (verdict.base, verdict.families, verdict.advanced) == (prime.bases[0], (), dialect is guide.NATIVE)


def test_the_guide_tells_every_key(prime):
    full, brief = (prime.guide(TASK, brief=brief) for brief in (False, True))
    assert all(
        f"{key} = {rule.wants}" in full and MEANING[key] in full
        for keys in TABLES.values()
        for key, rule in keys.items()
    )
    assert all(f"{path} = {rule.wants}" in full for path, rule in OPEN.items())
    assert all(base in full and base in brief for base in prime.bases)
    assert len(brief) < 700 < len(full) < 11_000


def test_the_guide_teaches_what_is_accepted_and_what_the_machines_have_room_for(monkeypatch):
    prime = PrimeRLTrainer(machines=[Need(gpus=2, gpu_memory_gib=24, disk_gib=100)])
    for there in (True, False):
        monkeypatch.setattr(prime, "_probes_tasksets", lambda there=there: there)
        full = prime.guide(TASK, brief=False)
        assert ("@vf.reward" in full) == ("env.taskset.NAME" in full) == there
        assert "all weights (lora_rank = 0) of: Qwen/Qwen3-0.6B.\n" in full


PLAIN = [example for example in EXAMPLES if not example.endswith("_taskset")]


def test_there_is_a_plain_example_of_every_family():
    assert sorted(tasks.names()) == PLAIN


@pytest.mark.parametrize(
    "example", [*PLAIN, *(pytest.param(e, marks=pytest.mark.verifiers) for e in EXAMPLES if e not in PLAIN)]
)
async def test_an_example_is_a_valid_job_of_its_family(prime, example):
    if example not in PLAIN:
        pytest.importorskip("verifiers.v1", reason="verifiers is not installed: make test-verifiers")
    family = example.removesuffix("_taskset")
    verdict = await prime.validate(Draft(task=evolve(TASK, family=family), files=files(example)))
    assert (verdict.ok, verdict.problems, verdict.families) == (True, (), (family,))


@pytest.mark.parametrize("example", PLAIN)
def test_its_questions_are_those_of_the_family_and_its_answers_right(example):
    import random

    scope: dict = {}
    exec(compile(files(example)["environment.py"], "environment.py", "exec"), scope)  # our own file
    (family,) = (f for f in FULL if f.name == example)
    rows = scope["examples"](random.Random(3), 200)
    lengths = set()
    for row in rows:
        key, program = family.key(row["prompt"]), family.read(row["prompt"])
        assert key is not None
        assert family.canonical(family.solve(program)) == family.canonical(row["answer"])
        lengths.add(len(program.ops))
        reply = f"First this, then that.\n\n**{row['answer']}**"
        assert family.grade(Item(prompt=row["prompt"], answer=row["answer"], key=key), reply).correct
        assert scope["reward"](row["prompt"], reply, row["answer"]) == 1.0
        assert scope["reward"](row["prompt"], "I do not know", row["answer"]) < 0.5
    assert family.difficulty in lengths
    wordings = {i for row in rows for i, w in enumerate(_wordings(family)) if w.read(row["prompt"])}
    assert wordings == set(range(len(_wordings(family))))


def _wordings(family):
    import sys

    return sys.modules[type(family).__module__].WORDINGS


# ---------------------------------------------------------------- validation


async def test_a_prompt_that_leaves_no_room_for_its_completion_is_refused(prime):
    job = tiny(seq_len=400) + "[rollout]\nmax_tokens = 256\n"
    verdict = await prime.validate(Draft(task=TASK, files={**files("multi_hop"), "job.toml": job}))
    assert "examples.prompt" in [problem.code for problem in verdict.problems]
    verdict = await prime.validate(Draft(task=TASK, files={**files("multi_hop"), "job.toml": tiny(seq_len=1024)}))
    assert verdict.ok, verdict.problems


async def test_a_job_that_fits_no_machine_is_refused_before_it_is_queued():
    files_ = {**files("calc_chain"), "job.toml": tiny(lora_rank=0)}
    prime = PrimeRLTrainer()
    prime.offered([Need(gpus=2, gpu_memory_gib=24, disk_gib=100)])
    verdict = await prime.validate(Draft(task=TASK, files=files_))
    assert [problem.code for problem in verdict.problems] == ["job.memory"]
    adapter = Draft(task=TASK, files=files("calc_chain"))
    assert (await prime.validate(adapter)).ok
    assert prime.need(adapter).gpus == 1
    await prime.close()


async def test_a_taskset_is_refused_where_nobody_can_probe_it(tmp_path, caplog):
    """Were it a fault of ours, an agent could call off any episode with it."""
    prime = PrimeRLTrainer(python=str(tmp_path / "python"))
    draft = Draft(task=TASK, files=guide.example(guide.NATIVE, prime.bases[0]))
    for _ in range(2):
        verdict = await prime.validate(draft)
        assert [problem.code for problem in verdict.problems] == ["environment.dialect"]
    assert [record.message for record in caplog.records] == [caplog.messages[0]]
    assert "pip install 'nested-rl[prime-rl]'" in caplog.messages[0]
    assert "@vf.reward" not in prime.guide(TASK, brief=False)
    await prime.close()


async def test_everything_that_is_written_wrongly_is_told_at_once(prime):
    code = "import socket\ndef examples(rng, n): ...\n"
    verdict = await prime.validate(Draft(task=TASK, files={"job.toml": tiny(step=1), "environment.py": code}))
    codes = [problem.code for problem in verdict.problems]
    assert codes == ["job.key", "environment.import", "environment.missing"]


async def test_what_cannot_be_read_is_a_problem_and_never_an_exception(prime, caplog):
    for files_ in ({}, {"job.toml": "\0"}, {"job.toml": "[" * 9000, "environment.py": ""}, {"job.toml": tiny()}):
        verdict = await prime.validate(Draft(task=TASK, files=files_))
        assert not verdict.ok
        assert verdict.problems
    assert not caplog.records


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("", "", None),
        ("steps = 40", "step = 40", "job.key"),
        ("batch_size = 128", "batch_size = 100", "job.value"),
        ("[rollout]", "[prime_rl]\nslurm.partition = 'x'\n[rollout]", "prime_rl.denied"),
        ("[rollout]", "[prime_rl]\ninference.vllm.max_model_length = 9\n[rollout]", "prime_rl.key"),
        ("lora_rank = 16", "lora_rank = 0", "job.memory"),
    ],
)
def test_the_command_line_prints_what_an_agent_would_be_told(tmp_path, capsys, old, new, code):
    for file, text in files("calc_chain").items():
        (tmp_path / file).write_text(text.replace(old, new) if file == "job.toml" else text)
    machine = ["--gpus", "2", "--gpu-memory-gib", "24"]
    status = cli.main(["jobs", "check", str(tmp_path), "--inner", "prime-rl", "--json", *machine])
    told = json.loads(capsys.readouterr().out)
    assert (status, told["ok"]) == ((0, True) if code is None else (1, False))
    assert [problem["code"] for problem in told["problems"]] == ([] if code is None else [code])
    assert all(set(problem) == {"code", "where", "message", "hint"} for problem in told["problems"])


@pytest.mark.parametrize(
    "wrong",
    [{"bases": ()}, {"bases": ("Qwen/Qwen3-32B",)}, {"timeout_s": 0.0}, {"timeout_s": float("nan")}],
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(SettingsError):
        PrimeRLTrainer(**wrong)


def test_a_further_base_comes_with_its_shape():
    shape = Shape(parameters=4.0e9, hidden=2560, layers=36)
    prime = PrimeRLTrainer(("Qwen/Qwen3-4B",), shapes={"Qwen/Qwen3-4B": shape})
    job = tiny().replace("1.7B", "4B")
    assert prime.need(Draft(task=TASK, files={**files("calc_chain"), "job.toml": job})).gpu_memory_gib > 24


def test_it_is_registered_under_its_name():
    assert parts.find("inner", "prime-rl") is PrimeRLTrainer
    assert PrimeRLTrainer().settings()["prime_rl"] == pin.COMMIT
    assert pin.COMMIT.startswith("559b447")
    assert pin.IMAGE.endswith(pin.COMMIT[:9])


# ---------------------------------------------------------------- memory


def test_estimates_lie_above_what_was_measured():
    """Upstream, one A6000, Qwen3-0.6B at 16 thousand tokens: 12.5 GiB for all weights, 5.1 GiB for an adapter."""
    shape = SHAPES["Qwen/Qwen3-0.6B"]
    assert 12.5 < trainer_gib(shape, "full", 16_384) < 14
    assert 5.1 < trainer_gib(shape, "lora", 16_384) < 7


def test_the_least_machine_is_the_least_that_a_placement_is_found_for():
    for shape in SHAPES.values():
        for kind in ("lora", "full"):
            for gpus in (1, 2):
                gib = least(shape, kind, 2048, gpus).gpu_memory_gib
                assert place(shape, kind, 2048, [gib] * gpus) is not None
                assert place(shape, kind, 2048, [gib - 0.3] * gpus) is None
    assert place(SHAPES["Qwen/Qwen3-0.6B"], "lora", 2048, []) is None


def test_on_a_shared_gpu_server_and_trainer_stay_within_it():
    for case in CASES:
        _, gpus, gb, base, kind = case
        if gpus == 1 and (base, kind, gb) != ("Qwen/Qwen3-1.7B", "full", 24):
            found = place(SHAPES[base], kind, 2048, [gb])
            trainer_share = trainer_gib(SHAPES[base], kind, 2048) / gb
            assert found.devices == "0,0"
            assert found.utilization + trainer_share < 0.96
            assert found.cache_bytes > 32_768 * SHAPES[base].token_bytes


# ---------------------------------------------------------------- orders


@pytest.fixture
def located(monkeypatch):
    async def locate(machine, base):
        return f"/bases/{base}"

    monkeypatch.setattr(weights, "locate", locate)


async def test_a_machine_that_shares_its_computer_gets_its_own_gpus(prime, located):
    one, two, none = Asked(*[48 * 1024] * 4), Asked(24 * 1024, 48 * 1024, 8 * 1024, 48 * 1024), Asked(48 * 1024)
    one.gpu_ids, two.gpu_ids, none.gpu_ids = (2,), (1, 3), ()
    assert (await prime.order(spec(), one)).gpus == "2,2"
    assert (await prime.order(spec(), two)).gpus == "1,3"
    assert await trainer.gpus(two) == (48.0, 48.0)
    with pytest.raises(InfraFault, match="no GPU"):
        await prime.order(spec(), none)


async def test_an_order_is_made_for_the_gpus_at_hand(prime, located):
    one = await prime.order(spec(), Asked(24_564))
    two = await prime.order(spec(), Asked(24_564, 24_564, 24_564))
    assert (one.gpus, two.gpus) == ("0,0", "0,1")
    assert one.kind == "lora"
    assert one.base_path == "/bases/Qwen/Qwen3-1.7B"
    assert (one.steps, one.deadline_s, one.digest) == (40, 650.0, spec().digest)
    golden = tomllib.loads((GOLDEN / f"{name('calc_chain', 1, 24, one.base, 'lora')}.toml").read_text())
    made = tomllib.loads(one.config)
    (source,), (gold,) = (tree["orchestrator"]["train"]["source"] for tree in (made, golden))
    assert source["env"]["taskset"].pop("id") == one.env.taskset
    gold["env"]["taskset"].pop("id")
    assert made.pop("model") == {"name": one.base_path}
    golden.pop("model")
    assert made == golden
    assert "pyproject.toml" in one.env.files


async def test_a_machine_that_cannot_is_ours_to_replace(prime, located):
    for machine in (Asked(), Asked(returncode=9), Asked(8_192), Asked("n/a")):
        with pytest.raises(InfraFault, match="asked"):
            await prime.order(spec(), machine)


async def test_a_machine_that_takes_too_long_to_get_ready_is_ours_to_replace(monkeypatch):
    async def never(machine, base):
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(weights, "locate", never)
    prime = PrimeRLTrainer()
    job = Job(id="j", key="j", spec=evolve(spec(), timeout_s=0.5), delivery=1)
    with pytest.raises(InfraFault, match="did not have the weights of Qwen"):
        await prime.train(job, Asked(24_564))


async def test_a_job_that_is_not_valid_is_its_authors(prime, located):
    with pytest.raises(AgentFault, match="not valid"):
        await prime.order(spec(**{"job.toml": "x"}), Asked(24_564))


async def test_this_computers_gpus_are_on_offer_when_one_machine_has_them(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 24564\necho 49140\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (offer,) = LocalCompute(max_machines=1).offers()
    assert (offer.gpus, offer.gpu_memory_gib) == (2, 24.0)
    (offer,) = LocalCompute(max_machines=2).offers()
    assert offer.gpus == 0


async def test_untrained_bases_are_scored_on_a_machine_with_a_gpu(tmp_path):
    from contextlib import asynccontextmanager

    from nested_rl import tasks
    from nested_rl.baselines import Baselines
    from nested_rl.inner.prime_rl import PrimeRLTrainer
    from nested_rl.rundir import RunDir
    from nested_rl.types import Need, Score

    asked = []

    class Compute:
        @asynccontextmanager
        async def machine(self, need):
            asked.append(need)
            yield None

    class Scorer:
        async def score(self, base, items, machine, *, seed=0):
            return Score.of([0.0, 1.0])

    (family,) = tasks.load("calc_chain", scale="full")
    trainer = PrimeRLTrainer()
    run = RunDir.create(tmp_path / "run", {"steps": 1})
    measured = Baselines(
        run, [family], bases=trainer.bases, scorer=Scorer(), compute=Compute(), need=trainer.scoring_need, n=2
    )
    await measured.of(next(family.tasks()))
    run.close()
    assert asked == [Need(gpus=1)]
