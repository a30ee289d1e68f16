"""Orders on a machine whose `rl` is a stand-in: how each run ends, and whose fault it is."""

import asyncio
import json
import os
import struct
from pathlib import Path

import pytest
from attrs import evolve
from runner_play import card, make_base, make_order, make_programs, terms

from nested_rl import process
from nested_rl.compute.local import LocalCompute
from nested_rl.errors import AgentFault, InfraFault, MachineLost
from nested_rl.inner.prime_rl import artefacts, preflight
from nested_rl.inner.prime_rl.launch import launch
from nested_rl.scorers import vllm_host
from nested_rl.types import Need

FACTS = preflight.Facts(
    program="/bin/rl",
    versions=dict(preflight.PINNED),
    gpus=(preflight.Gpu(index=0, name="NVIDIA RTX A5000", total_mib=24564, used_mib=3),),
    disk_gib=100.0,
)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = make_programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
async def machine(programs):
    compute = LocalCompute(1)
    async with compute.machine(Need()) as machine:
        preflight._KNOWN[machine] = FACTS  # asking takes longer than a run; see test_prime_rl_preflight.py
        yield machine
    await compute.close()


@pytest.fixture
def base(tmp_path):
    return make_base(tmp_path / "base")


def read(path):
    data = Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def read_bytes(path):
    return Path(path).read_bytes()


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def text(path):
    return Path(path).read_text() if Path(path).exists() else ""


def left(machine):
    """Work folders of runs that have ended."""
    return [path for path in Path(machine.root).glob("prime-rl/*/*") if path.name == "work"]


# ---------------------------------------------------------------- runs that end well


async def test_a_full_fine_tune_becomes_a_folder_with_the_bases_tokenizer(machine, base):
    events = []
    ended = await launch(
        machine, make_order(base), terms=terms(), on_progress=lambda event, told: events.append((event, told))
    )
    assert ended.stop == "done"
    assert ended.curve == (0.1, 0.2, 0.3)
    header, body = read(f"{ended.path}/model.safetensors")
    assert {name: (told["dtype"], told["shape"]) for name, told in header.items() if name != "__metadata__"} == {
        "model.embed_tokens.weight": ("BF16", [8, 4]),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", [6, 4]),
        "model.norm.weight": ("BF16", [4]),
    }
    assert body == struct.pack("<f", 0.75)[2:] * 60
    assert names(ended.path) == [
        "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert text(f"{ended.path}/tokenizer.json") == "the base's"
    assert "NVIDIA RTX A5000" in ended.log
    assert "verifiers==0.3.1.dev62" in ended.log
    assert "Step 3 | Reward 0.3" in ended.log
    assert len(ended.digest) == 64
    assert events[0][0] == "started"
    assert not left(machine)


async def test_an_adapter_stays_one_and_its_config_is_ours(machine, base):
    ended = await launch(machine, make_order(base, kind="lora"), terms=terms())
    config = json.loads(text(f"{ended.path}/adapter_config.json"))
    assert config["base_model_name_or_path"] == str(base)
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 8, ["q_proj"])
    assert "auto_mapping" not in config
    header, _ = read(f"{ended.path}/adapter_model.safetensors")
    assert set(header) - {"__metadata__"} == {
        f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight" for side in "AB"
    }
    assert names(ended.path) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


async def test_an_adapter_has_the_same_digest_wherever_its_base_lies(machine, base, tmp_path):
    bases = (base, make_base(tmp_path / "elsewhere"))
    first, second = [await launch(machine, make_order(at, kind="lora"), terms=terms()) for at in bases]
    assert first.digest == second.digest


async def test_the_same_order_twice_meets_no_traces_of_the_first(machine, base):
    first, second = [await launch(machine, make_order(base), terms=terms()) for _ in range(2)]
    assert first.digest == second.digest
    assert first.path != second.path


async def test_much_noise_changes_nothing_and_is_cut(machine, base):
    ended = await launch(machine, make_order(base, at_2=["shout"]), terms=terms())
    assert ended.curve == (0.1, 0.2, 0.3)
    assert len(ended.log) <= 40_000
    assert "\x1b" not in ended.log


# ---------------------------------------------------------------- runs that do not


async def test_a_crash_is_the_jobs_and_shows_its_environments_words(machine, base):
    with pytest.raises(AgentFault, match=r"rl ended with exit status 1(.|\n)*ZeroDivisionError: in reward"):
        await launch(machine, make_order(base, at_2=["crash"]), terms=terms())
    assert not left(machine)


@pytest.mark.parametrize(
    ("how", "limits", "why"),
    [
        ({"at_1": ["unstable", "hang"]}, {"stall_s": 0.3}, r"no step was finished for 0\.3 s after step 1; no complete"),
        ({"at_1": ["hang"]}, {"deadline_s": 0.5}, r"still running after 0\.5 s"),
        ({"at_1": ["nan", "hang"]}, {}, "no longer finite"),
        ({"at_1": ["unstable", "empty", "hang"]}, {}, "batches in a row"),
        ({"at_end": ["no_weights"]}, {}, "no complete weights of step 3: the last complete one is of step 2"),
        ({"at_end": ["unstable"]}, {}, "no complete weights of step 3"),
        ({"not_finite": 3}, {}, r"the run ended well, but model\.\w+.* has values that are not finite"),
        ({"at_end": ["foreign_files"]}, {}, r"files that prime-rl does not write: 'tokenizer\.json'"),
        ({"at_end": ["links"]}, {}, "files that prime-rl does not write: 'x'"),
        ({"at_1": ["forge"]}, {}, "exit status 3"),
    ],
)  # fmt: skip
async def test_these_ends_are_the_jobs(machine, base, how, limits, why):
    with pytest.raises(AgentFault, match=why) as fault:
        await launch(machine, make_order(base, limits=limits, **how), terms=terms())
    assert "root:x" not in str(fault.value)
    assert not left(machine)


@pytest.mark.parametrize(
    ("stop", "how", "limits"),
    [
        ("zero_signal", {"at_2": ["empty", "hang"]}, {}),
        ("zero_signal", {"at_2": ["abort"]}, {}),
        ("zero_signal", {"at_2": ["flat", "hang"]}, {}),
        ("stalled", {"at_2": ["hang"]}, {"stall_s": 0.5}),
        ("collapse", {"steps": 10, "rewards": [0.8] * 5 + [0.0] * 5, "at_10": ["hang"]}, {}),
    ],
)
async def test_what_was_trained_until_then_is_scored(machine, base, stop, how, limits):
    ended = await launch(machine, make_order(base, limits=limits, **how), terms=terms())
    assert ended.stop == stop
    assert "model.safetensors" in names(ended.path)


async def test_a_full_disk_is_the_fault_of_who_filled_it(machine, base):
    order = make_order(base, at_1=["fill"])
    with pytest.raises(AgentFault, match=r"filled [5-9] MiB of disk"):
        await launch(machine, order, terms=terms(job_bytes=4 << 20))
    with pytest.raises(InfraFault, match=r"MiB of disk are free, and the job uses only \d+ MiB"):
        await launch(machine, order, terms=terms(spare_bytes=1 << 60))


async def test_a_job_that_removes_its_own_folder_harms_itself(machine, base):
    with pytest.raises(AgentFault):
        await launch(machine, make_order(base, at_1=["vanish"]), terms=terms())


async def test_a_damaged_base_is_no_fault_of_the_job(machine, base):
    order = make_order(base, at_3=["overwrite"], file=str(base / "model.safetensors"), text="damaged")
    with pytest.raises(InfraFault, match="the base is damaged"):
        await launch(machine, order, terms=terms())


async def test_forged_results_are_not_believed(machine, base):
    with pytest.raises(AgentFault, match="exit status 3"):
        await launch(machine, make_order(base, at_3=["forge"]), terms=terms())


# ---------------------------------------------------------------- what is left


async def test_a_process_that_hides_is_found_and_ended(machine, base, tmp_path):
    await launch(machine, make_order(base, at_2=["leave"], pid=str(tmp_path / "pid")), terms=terms())
    assert not process.alive(process.identity(int(text(tmp_path / "pid"))))


async def test_called_off_everything_is_ended(machine, base, tmp_path):
    order = make_order(base, at_1=["leave", "hang"], pid=str(tmp_path / "pid"))
    stepped = asyncio.Event()

    def told(event, values):
        if values.get("step"):
            stepped.set()

    running = asyncio.ensure_future(launch(machine, order, terms=terms(), on_progress=told))
    async with asyncio.timeout(60):
        await stepped.wait()
        while not text(tmp_path / "pid"):  # noqa: ASYNC110  other processes send no events
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not process.alive(process.identity(int(text(tmp_path / "pid"))))
    assert not left(machine)


# ---------------------------------------------------------------- the machine's own faults


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (card(used=9000), "memory of GPU 0 is still in use"),
        (card(ecc=2), "2 uncorrected memory errors"),
        ("", "1 GPUs are gone"),
        ("No devices were found", "nvidia-smi tells something else"),
    ],
)
async def test_a_machine_that_breaks_is_no_fault_of_the_job(machine, base, programs, after, why):
    driver = str(programs / "gpus")
    for how in ({"at_end": ["overwrite"]}, {"at_1": ["overwrite", "crash"]}):
        (programs / "gpus").write_text(card())
        with pytest.raises(InfraFault, match=why):
            await launch(machine, make_order(base, file=driver, text=after, **how), terms=terms(gpu_s=0.3))


async def test_an_engine_that_never_ran_is_the_machines_fault(machine, base, programs):
    order = make_order(base, steps=0, at_end=["hang"], limits={"start_s": 0.3})
    with pytest.raises(InfraFault, match="no engine ever ran"):
        await launch(machine, order, terms=terms())


async def test_a_runner_that_dies_is_a_lost_machine(machine, base):
    with pytest.raises(MachineLost, match="died before it answered"):
        await launch(machine, make_order(base, at_1=["kill_runner"]), terms=terms())


async def test_a_job_that_arrives_damaged_is_not_run(machine, base, monkeypatch):
    put = machine.put

    async def spoil(path, data):
        await put(path, data.replace(b"max_steps", b"min_steps"))

    monkeypatch.setattr(machine, "put", spoil)
    with pytest.raises(InfraFault, match="did not arrive as it was sent"):
        await launch(machine, make_order(base), terms=terms())


async def test_without_a_base_nothing_is_begun(machine, base):
    with pytest.raises(InfraFault, match="there is no base"):
        await launch(machine, evolve(make_order(base), base_path="/nowhere"), terms=terms())


# ---------------------------------------------------------------- the gate


async def test_a_base_with_one_reward_for_all_answers_is_not_trained(machine, base):
    rewards = [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(AgentFault, match=r"the untrained base gets one reward for all answers to each of 2 prompts"):
        await launch(machine, make_order(base, gate=rewards), terms=evolve(terms(), gate=True))


@pytest.mark.parametrize(
    ("rewards", "note"),
    [
        ({"gate": [[0.0, 1.0], [0.0, 0.0]]}, "mean reward is 0.250 on 2 prompts"),
        ({}, "was not asked (no rewards, exit status 1)"),
        ({"gate": [[]]}, "was not asked (no rewards, exit status 0)"),
        ({"gate": [["x"]]}, "was not asked"),
    ],
)
async def test_else_it_is_and_the_log_says_what_the_gate_saw(machine, base, rewards, note):
    ended = await launch(machine, make_order(base, **rewards), terms=evolve(terms(), gate=True))
    assert note in ended.log


# ---------------------------------------------------------------- kept


@pytest.mark.parametrize("kind", ["full", "lora"])
async def test_weights_are_fetched_in_parts_and_checked(machine, base, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(artefacts, "PART_BYTES", 50)
    ended = await launch(machine, make_order(base, kind=kind), terms=terms())
    kept = await artefacts.fetch(machine, ended.path, tmp_path / "kept", digest=ended.digest)
    assert kept == tmp_path / "kept" / ended.digest
    for name in names(ended.path):
        assert read_bytes(kept / name) == read_bytes(f"{ended.path}/{name}")
    for place in (Path(ended.path), kept):
        vllm_host.verify(place, ended.digest)  # whoever scores them knows them too
    assert names(tmp_path / "kept") == [ended.digest]
    assert artefacts.retain(tmp_path / "kept", [ended.digest]) == ()
    gone = artefacts.retain(tmp_path / "kept", [])
    assert gone == ((ended.digest,) if kind == "full" else ())
    await artefacts.discard(machine, ended.path)
    with pytest.raises(MachineLost, match="no weights there"):
        await artefacts.fetch(machine, ended.path, tmp_path / "other", digest=ended.digest)
    assert names(tmp_path / "other") == []


@pytest.mark.parametrize(
    ("kind", "file"),
    [("full", "tokenizer.json"), ("lora", "adapter_config.json"), ("lora", "adapter_model.safetensors")],
)
async def test_weights_that_were_changed_are_not_kept_and_not_scored(machine, base, tmp_path, kind, file):
    ended = await launch(machine, make_order(base, kind=kind), terms=terms())
    await machine.put(f"{ended.path}/{file}", b"[another]")
    with pytest.raises(vllm_host.Refused, match="not what training wrote"):
        vllm_host.verify(Path(ended.path), ended.digest)
    with pytest.raises(InfraFault, match="not what was trained"):
        await artefacts.fetch(machine, ended.path, tmp_path / "kept", digest=ended.digest)
    assert names(tmp_path / "kept") == []
