"""What a full-scale job.toml may say: each fault with a correct twin that passes."""

import tomllib

import pytest
from prime_rl_material import SURFACE

from nested_rl.inner.prime_rl import arguments, job
from nested_rl.inner.prime_rl.keys.reading import NAME, flat, read
from nested_rl.inner.prime_rl.keys.render import render
from nested_rl.inner.prime_rl.memory import SHAPES, Placement
from nested_rl.inner.prime_rl.order import Package
from nested_rl.inner.prime_rl.problems import BRIEF
from nested_rl.jobs.folder import parse
from nested_rl.types import Need

CODE = "def examples(rng, n): ...\ndef reward(prompt, completion, answer): ...\n"
JOB = """\
[model]
base = "Qwen/Qwen3-0.6B"
[training]
steps = 40
learning_rate = 5e-5
{training}
[rollout]
max_tokens = 256
{rollout}
{prime_rl}
"""


def said(*, training="", rollout="", prime_rl=""):
    text = JOB.format(training=training, rollout=rollout, prime_rl=prime_rl)
    return parse({"job.toml": text, "environment.py": CODE}, SURFACE)


def told(**tables):
    config, problems = said(**tables)
    assert (config is None) == bool(problems)
    for problem in problems:
        assert problem.message
        assert 0 < len(problem.brief) <= 40
    return [(problem.code, problem.where.rpartition(" ")[2]) for problem in problems]


# ---------------------------------------------------------------- names (kinds 27, 28 and 33 of the reference)

DENIED = {
    "custom loss": 'trainer.loss.type = "custom"',
    "its import path": 'trainer.loss.import_path = "environment.loss"',
    "filters by import": 'orchestrator.algo.filter.import_path = "environment.f"',
    "environment variables": 'env_vars.LD_PRELOAD = "x.so"',
    "of the trainer": 'trainer.env_vars.A = "b"',
    "of the server": 'inference.env_vars.A = "b"',
    "slurm": 'slurm.pre_run_command = "id"',
    "output folder": 'output_dir = "/root"',
    "checkpoint folder": 'ckpt.output_dir = "/"',
    "a trace": 'trainer.trace_path = "/tmp/x"',
    "remote code": "trainer.model.trust_remote_code = true",
    "remote code in vLLM": "inference.vllm.trust_remote_code = true",
    "another model": 'orchestrator.model.name = "x"',
    "chat template": 'tokenizer.chat_template = "{{ 6 }}"',
    "renderer": 'orchestrator.renderer.name = "custom"',
    "a teacher": 'orchestrator.algo.type = "opd"',
    "more GPUs": "deployment.num_train_gpus = 8",
    "other broadcast": 'weight_broadcast.type = "nccl"',
    "wandb": 'monitors.wandb.project = "x"',
    "evaluation": "orchestrator.eval.interval = 1",
    "resume": "resume.step = 3",
    "extra sampling": "orchestrator.train.sampling.extra_body.top_k = 3",
    "child processes": 'orchestrator.train.source.env.agent.harness.id = "bash"',
    "other runtime": 'orchestrator.train.source.env.agent.runtime.type = "prime"',
    "memory": "inference.vllm.gpu_memory_utilization = 0.99",
    "modules beside the adapter": 'trainer.model.lora.modules_to_save = ["lm_head"]',
    "heartbeat": 'orchestrator.heartbeat.url = "http://x"',
    "system prompt file": 'orchestrator.train.source.env.taskset.system_prompt = "/etc/passwd"',
}


@pytest.mark.parametrize("line", DENIED.values(), ids=DENIED)
def test_what_is_refused_is_refused_by_name(line):
    config, problems = said(prime_rl=f"[prime_rl]\n{line}")
    path = line.partition(" = ")[0]
    assert config is None
    assert [problem.code for problem in problems] == ["prime_rl.denied"]
    assert path in problems[0].message
    assert "refused" in problems[0].message


MISTAKES = {
    "a vLLM typo": ("inference.vllm.max_model_length = 4096", "prime_rl.key", "inference.vllm.max_model_len?"),
    "another": ("inference.vllm.max_num_seq = 64", "prime_rl.key", "inference.vllm.max_num_seqs?"),
    "unknown to vLLM": ("inference.vllm.swap = 4", "prime_rl.key", "the guide"),
    "misspelt": ("trainer.optim.weight_decy = 0.1", "prime_rl.key", "trainer.optim.weight_decay?"),
    "misspelt, and elsewhere": ("trainer.optim.lrr = 1e-5", "prime_rl.key", "[training] learning_rate"),
    "unknown": ("foo = 1", "prime_rl.key", "the guide"),
    "of job.toml": ("max_steps = 10", "prime_rl.moved", "[training] steps"),
    "the base": ('model.name = "Qwen/Qwen3-8B"', "prime_rl.moved", "[model] base"),
    "endless": ("orchestrator.max_steps = -1", "prime_rl.moved", "[training] steps"),
    "renamed": ("orchestrator.rollouts_per_example = 8", "prime_rl.moved", "[training] group_size"),
    "renamed loss key": ("trainer.loss.mask_ratio_high = 8.0", "prime_rl.moved", "trainer.loss.dppo_mask_high"),
    "set twice": (
        '"trainer.optim.weight_decay" = 0.1\ntrainer.optim.weight_decay = 0.2',
        "prime_rl.twice",
        "one of them",
    ),
    "a type of many": ('weight_broadcast.type = "nccl"', "prime_rl.denied", "leave it out"),
    "wrong type": ('trainer.optim.weight_decay = "0.1"', "prime_rl.value", ""),
    "out of range": ("trainer.optim.betas1 = 1.5", "prime_rl.value", ""),
    "true is no number": ("orchestrator.max_off_policy_steps = true", "prime_rl.value", ""),
    "no table": ("trainer.optim = 3", "prime_rl.value", ""),
    "two sources": ("orchestrator.train.source = [{}, {}]", "prime_rl.value", ""),
    "a list with strangers": ('trainer.model.lora.target_modules = ["q_proj", "lm_head"]', "prime_rl.value", ""),
    "of another optimiser": ("trainer.optim.momentum = 0.5", "prime_rl.kind", "trainer.optim.type = 'sgd'"),
    "of another loss": ("trainer.loss.ipo_threshold = 0.5", "prime_rl.kind", "trainer.loss.type = 'ipo'"),
}


@pytest.mark.parametrize(("line", "code", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_with_the_way_out(line, code, hint):
    _, problems = said(prime_rl=f"[prime_rl]\n{line}")
    assert [problem.code for problem in problems] == [code]
    assert hint in problems[0].hint


TWINS = (
    'trainer.optim.type = "sgd"\ntrainer.optim.momentum = 0.5',
    'trainer.loss.type = "ipo"\ntrainer.loss.ipo_threshold = 0.5',
    "inference.vllm.max_model_len = 4096\ninference.vllm.max_num_seqs = 64",
    'trainer.model.lora.target_modules = ["q_proj", "v_proj"]',
    "orchestrator.train.source = [{curriculum.gates.a.reject_max = 0.1}]",
    "orchestrator.train.source.curriculum.sampler = {type = 'difficulty_pool', pools.a = {threshold = 0, weight = 1}}",
    'orchestrator.algo.type = "max_rl"',
    "trainer.optim = {}",
    "",
)


@pytest.mark.parametrize("lines", TWINS)
def test_what_is_allowed_is_taken_and_counted(lines):
    config, problems = said(prime_rl=f"[prime_rl]\n{lines}")
    assert problems == ()
    assert config.advanced == bool(lines)


def test_hostile_keys_are_only_unknown():
    deep = ".".join(["a"] * 400)
    for line in (deep, '"a.b"', '"\\n\\u001b[2J"', f'"{"x" * 5000}"'):
        assert told(prime_rl=f"[prime_rl]\n{line} = 1")[0][0] == "prime_rl.key"
    assert len(told(prime_rl="[prime_rl]\n" + "".join(f"x{i} = 1\n" for i in range(200)))) == 8
    _, (found,) = said(prime_rl='[prime_rl]\n"\\n\\u001b[2J" = 1')
    assert found.where.isprintable()
    assert found.message.isprintable()


# ---------------------------------------------------------------- values together (kinds 25, 26 and 28)

FAULTY = {
    "group of one": ({"training": "group_size = 1"}, {"training": "group_size = 2"}),
    "indivisible": ({"training": "batch_size = 100\ngroup_size = 8"}, {"training": "batch_size = 96\ngroup_size = 8"}),
    "no room": ({"training": "seq_len = 256"}, {"training": "seq_len = 384"}),
    "cosine": (
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'cosine'\nwarmup_steps = 60"},
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'cosine'\nwarmup_steps = 4"},
    ),
    "linear": (
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'linear'\nwarmup_steps = 20\ndecay_steps = 30"},
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'linear'\nwarmup_steps = 20\ndecay_steps = 20"},
    ),
    "linear, constantly": (
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'linear'\nwarmup_steps = 0\ndecay_steps = 0"},
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'linear'\nwarmup_steps = 0"},
    ),
    "ends above its peak": (
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'cosine'\nmin_lr = 1e-3"},
        {"prime_rl": "[prime_rl.trainer.scheduler]\ntype = 'cosine'\nmin_lr = 1e-6"},
    ),
    "adapter of none": (
        {"training": "lora_rank = 0", "prime_rl": "[prime_rl.trainer.model.lora]\nalpha = 64.0"},
        {"training": "lora_rank = 8", "prime_rl": "[prime_rl.trainer.model.lora]\nalpha = 64.0"},
    ),
    "short server": (
        {"prime_rl": "[prime_rl.inference.vllm]\nmax_model_len = 1024"},
        {"prime_rl": "[prime_rl.inference.vllm]\nmax_model_len = 2048"},
    ),
    "whole prompts": (
        {"prime_rl": "[prime_rl.inference.vllm]\nenable_chunked_prefill = false\nmax_num_batched_tokens = 1024"},
        {"prime_rl": "[prime_rl.inference.vllm]\nenable_chunked_prefill = false\nmax_num_batched_tokens = 2048"},
    ),
    "half a group under way": (
        {"training": "group_size = 16", "prime_rl": "[prime_rl.orchestrator.concurrency]\nmax_inflight = 8"},
        {"training": "group_size = 16", "prime_rl": "[prime_rl.orchestrator.concurrency]\nmax_inflight = 16"},
    ),
    "more than most": (
        {"prime_rl": "[prime_rl.orchestrator.concurrency]\ninitial_inflight = 100"},
        {"prime_rl": "[prime_rl.orchestrator.concurrency]\ninitial_inflight = 100\nmax_inflight = 128"},
    ),
    "half a pool": (
        {
            "prime_rl": "[prime_rl.orchestrator.train.source.curriculum.sampler]\ntype = 'difficulty_pool'\npools.a.weight = 1"
        },
        {
            "prime_rl": "[prime_rl.orchestrator.train.source.curriculum.sampler]\ntype = 'difficulty_pool'\n"
            "pools.a = {weight = 1, threshold = 0.5}"
        },
    ),
    "a gate that rejects everything": (
        {"prime_rl": "[prime_rl.orchestrator.train.source.curriculum.gates.a]\nreject_min = -1000\nreject_max = 1000"},
        {"prime_rl": "[prime_rl.orchestrator.train.source.curriculum.gates.a]\nreject_min = -1000\nreject_max = 0.5"},
    ),
    "an empty gate": (
        {"prime_rl": "[prime_rl.orchestrator.train.source.curriculum.gates.a]\nreject_min = 1.0"},
        {"prime_rl": "[prime_rl.orchestrator.train.source.curriculum.gates.a]\nreject_min = 1.0\nreject_max = 2.0"},
    ),
}


@pytest.mark.parametrize(("faulty", "twin"), FAULTY.values(), ids=FAULTY)
def test_a_fault_and_its_twin(faulty, twin):
    assert told(**faulty) != []
    assert told(**twin) == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("steps = 40", "", "job.missing"),  # endless
        ("steps = 40", "steps = -1", "job.value"),
        ("steps = 40", "steps = 100000", "job.value"),
        ("Qwen3-0.6B", "Qwen3-8B", "job.base"),
        ("learning_rate", "lr", "job.key"),
        ("[rollout]", "[sampling]", "job.table"),
    ],
)
def test_the_plain_tables_are_checked_too(old, new, code):
    text = JOB.format(training="", rollout="", prime_rl="").replace(old, new, 1)
    config, problems = parse({"job.toml": text, "environment.py": CODE}, SURFACE)
    assert config is None
    assert problems[0].code == code


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ("[trainer.optim]\nweight_decay = 0.1", "write [prime_rl.trainer.optim]"),
        ("[trainer.optim]\nlr = 1e-5", "write [prime_rl.trainer.optim]"),
        (
            "[orchestrator]\nmax_off_policy_steps = 1\ntrain.filter_zero_advantages = true",
            "write [prime_rl.orchestrator]",
        ),
        ("[sampling]\ntop_p = 1.0", "the tables are: "),
    ],
)
def test_a_table_of_prime_rl_alone_is_told_where_it_belongs(lines, hint):
    _, (found,) = said(prime_rl=lines)
    assert found.code == "job.table"
    assert hint in found.hint


def accepted(tree) -> bool:
    """prime-rl's own check of a schedule."""
    schedule, steps = tree["trainer"].get("scheduler", {"type": "constant"}), tree["max_steps"]
    warmup, decay = schedule.get("warmup_steps", 10), schedule.get("decay_steps", 10)
    if schedule["type"] == "linear":
        return (warmup, decay) != (0, 0) and (decay == 0 or warmup + decay <= steps)
    return schedule["type"] == "constant" or warmup < steps


@pytest.mark.parametrize("steps", [2, 5, 9, 40, 200])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_every_schedule_that_passes_is_one_that_prime_rl_takes(steps, kind):
    passed = 0
    for warmup in (None, 0, 1, steps - 1, steps):
        for decay in (None, 0, 1, steps) if kind == "linear" else (None,):
            lines = f"warmup_steps = {warmup}\n" if warmup is not None and kind != "constant" else ""
            lines += f"decay_steps = {decay}\n" if decay is not None else ""
            table = f"[prime_rl.trainer.scheduler]\ntype = '{kind}'\n{lines}"
            text = JOB.format(training="", rollout="", prime_rl=table).replace("steps = 40", f"steps = {steps}", 1)
            config, _ = parse({"job.toml": text, "environment.py": CODE}, SURFACE)
            if config is not None:
                package, place = (
                    Package(taskset="x", dialect="plain", files={}),
                    Placement(devices="0,1", utilization=0.9),
                )
                assert accepted(tomllib.loads(render(config, package, place, base_path="x", harness="x"))), lines
                passed += 1
    assert passed


# ---------------------------------------------------------------- settings of a taskset (kind 29)

NATIVE = """\
import verifiers.v1 as vf
class Base(vf.TasksetConfig):
    rows: int = 8
class Settings(Base):
    level: float = 0.5
    name: str = "a"
class Other:
    hidden: int = 3
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rows = 4", None),
        ("level = 1", None),
        ('name = "b"', None),
        ("row = 4", "did you mean 'rows'?"),
        ("hidden = 4", "it has: rows, level, name"),
        ("rows = true", "give a value of that type"),
        ('rows = "4"', "give a value of that type"),
    ],
)
def test_a_setting_is_a_field_of_the_tasksets_config(line, found):
    settings = tomllib.loads(f"[orchestrator.train.source.env.taskset]\n{line}")
    assert list(read(settings)) == []
    problems = list(arguments.check(settings, NATIVE))
    assert [problem.hint for problem in problems] == ([] if found is None else [found])


def test_a_plain_environment_has_no_settings_and_one_turn():
    config, _ = said(rollout="max_turns = 2", prime_rl="[prime_rl.orchestrator.train.source.env.taskset]\nrows = 4")
    files = {"environment.py": NATIVE}
    assert [p.code for p in job.dialect_problems(config, files, "plain")] == ["job.fit", "prime_rl.argument"]
    assert list(job.dialect_problems(config, files, "native")) == []


# ---------------------------------------------------------------- machines


def test_a_job_that_fits_no_machine_is_refused():
    big, small = Need(gpus=1, gpu_memory_gib=45, disk_gib=99), Need(gpus=1, gpu_memory_gib=24, disk_gib=99)
    pair = Need(gpus=2, gpu_memory_gib=33, disk_gib=99)
    full, _ = said(training="lora_rank = 0")
    shape = SHAPES["Qwen/Qwen3-1.7B"]
    assert [p.code for p in job.memory_problems(full, shape, [small, Need(disk_gib=99)])] == ["job.memory"]
    for offers in ([], [big], [small, big], [pair]):
        assert list(job.memory_problems(full, shape, offers)) == []
    assert job.need(full, shape, [pair]).gpus == 2
    assert job.need(full, shape, [big, pair]).gpus == 1
    assert job.need(full, shape, []).fits(big)
    adapter, _ = said()
    assert list(job.memory_problems(adapter, shape, [small])) == []


def test_every_code_has_its_brief():
    assert all(len(text.format(name="x")) <= 40 for text in BRIEF.values())


def test_flat_reads_tables_dots_and_the_one_source_alike():
    nested = tomllib.loads("[prime_rl.trainer.optim]\nmu = 1\n[[prime_rl.orchestrator.train.source]]\nname = 'a'")
    dotted = tomllib.loads("[prime_rl]\ntrainer.optim.mu = 1\norchestrator.train.source.name = 'a'")
    assert flat(nested[NAME]) == flat(dotted[NAME]) == {"trainer.optim.mu": 1, "orchestrator.train.source.name": "a"}
