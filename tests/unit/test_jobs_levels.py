"""Each level of the sandbox that this kernel offers: whole jobs run at it, not only probes, and what is weaker is taken in its turn."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from nested_rl import tasks
from nested_rl.inner import nano_job
from nested_rl.inner.nano import NanoInnerTrainer
from nested_rl.inner.nano_dialect import TABLES
from nested_rl.jobs.probe import probe
from nested_rl.jobs.sandbox import Zygote

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and the filter are Linux's")
SOUND = """
from nested_rl.jobkit import make, parse

def examples(rng, n):
    return make("dispatch", rng, n)

def reward(prompt, completion, answer):
    return float(parse(completion) == answer)
"""
RECIPE = {name: key.default for keys in TABLES.values() for name, key in keys.items()}


@pytest.fixture(scope="module", params=["namespaces", "seccomp", "limits"])
def shop(request):
    """A machine's training program with the sandbox at one level."""
    shop = nano_job.Shop()
    shop.close()
    shop.zygote = Zygote(strongest=request.param)
    if shop.zygote.level != request.param:
        shop.close()
        pytest.skip(f"{request.param} is not available here")
    yield shop
    shop.close()


def trained(shop, out, environment=SOUND):
    question = {
        "base": "nano-s",
        "files": {"job.toml": "", "environment.py": textwrap.dedent(environment)},
        "recipe": RECIPE | {"steps": 2, "learning_rate": 1e-3, "batch_size": 16},
        "seed": 3,
        "work_limit": 1e10,
        "families": [],
        "out": str(out),
    }
    return shop.answer(question)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """What the job's weights are with limits alone, which every system has."""
    shop = nano_job.Shop()
    shop.close()
    shop.zygote = Zygote(strongest="limits")
    answer = trained(shop, tmp_path_factory.mktemp("job") / "out")
    shop.close()
    return answer["digest"]


def test_a_job_trains_the_same_weights_at_every_level(shop, tmp_path, weights):
    answer = trained(shop, tmp_path / "out")
    assert answer["digest"] == weights
    assert answer["work"] > 0
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_probe_says_the_same_at_every_level(shop):
    rules = NanoInnerTrainer().surface.probe
    files = {"environment.py": SOUND}
    found = probe(files, rules, zygote=shop.zygote, families=tasks.load(scale="nano"))
    assert (found.problems, found.families) == ((), ("dispatch",))


ENDLESS = """
    def examples(rng, n):
        return [{"prompt": f"{i}", "answer": "1"} for i in range(n)]

    def reward(prompt, completion, answer):
        while True:
            pass
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("bytearray(1 << 40)", "MemoryError"),
        ("sys.exit(3)", "SystemExit"),
        ("os.abort()", "ended its process"),
    ],
)
def test_a_job_that_misbehaves_is_told_so_at_every_level(shop, tmp_path, body, told):
    environment = f"""
    import sys
    os = sys.modules["os"]

    def examples(rng, n):
        {body}
        return []

    def reward(prompt, completion, answer):
        return 1.0
    """
    assert told in trained(shop, tmp_path / "out", environment)["fault"]
    assert not (tmp_path / "out").exists()
    assert "fault" not in trained(shop, tmp_path / "next"), "the next job is not harmed"


@LINUX
def test_an_endless_reward_is_ended_at_every_level(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(nano_job, "LIMITS", nano_job.Limits(cpu_s=1, call_s=60.0))
    assert "processor time" in trained(shop, tmp_path / "out", ENDLESS)["fault"]


@LINUX
@pytest.mark.parametrize(
    "body",
    ['open_ = os.open("/etc/hostname", 0)', 'sys.modules["socket"].socket()', "os.fork()"],
    ids=["files", "sockets", "processes"],
)
def test_only_the_weakest_level_lets_a_job_at_the_system(shop, tmp_path, body):
    """Which is why it is called weak, by `nested-rl doctor` too: it catches honest mistakes."""
    if shop.zygote.level == "limits":
        pytest.skip("limits alone stop no attack")
    environment = f"""
    import sys
    os = sys.modules["os"]

    def examples(rng, n):
        {body}
        return []

    def reward(prompt, completion, answer):
        return 1.0
    """
    fault = trained(shop, tmp_path / "out", environment)["fault"]
    assert any(word in fault for word in ("PermissionError", "FileNotFoundError", "BlockingIOError", "KeyError"))


# ---------------------------------------------------------------- which level is taken

BUILD = """
import resource, sys
from nested_rl.jobs import confine, seccomp
{before}
try:
    walls = confine.Walls.build({strongest!r})
except OSError as error:
    print("refused:", error)
    sys.exit()
print(walls.level)
"""


def built(strongest: str, before: str) -> str:
    """What a process of its own says: building walls gives up rights for ever."""
    code = BUILD.format(before=before, strongest=strongest)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NO_NAMESPACES = "confine._namespaces = lambda root: False"
NO_FILTER = "seccomp.supported = lambda: False"
FILTER_REFUSED = "seccomp.Filter.apply = lambda self, libc: False"
FILTER_LEAKS = "confine._harmless = lambda: False"


@LINUX
@pytest.mark.parametrize(
    ("strongest", "before", "level"),
    [
        ("namespaces", [NO_NAMESPACES, NO_FILTER], "limits"),
        ("namespaces", [NO_NAMESPACES, FILTER_REFUSED], "limits"),
        ("namespaces", [NO_NAMESPACES, FILTER_LEAKS], "limits"),
        ("seccomp", [FILTER_REFUSED], "limits"),
        ("seccomp", [NO_FILTER], "limits"),
        ("limits", [], "limits"),
        (
            "limits",
            ["confine.Walls.enter = lambda self, **limits: 1 / 0"],
            "refused: a confined process cannot be started here",
        ),
    ],
)
def test_what_does_not_stand_is_not_claimed(strongest, before, level):
    assert built(strongest, "\n".join(before)) == level


@LINUX
def test_without_namespaces_the_filter_alone_is_taken(any_filter):
    assert built("namespaces", NO_NAMESPACES) == "seccomp"


@pytest.fixture
def any_filter():
    with Zygote(strongest="seccomp") as zygote:
        if zygote.level != "seccomp":
            pytest.skip("the system-call filter is not available here")


@LINUX
def test_the_weakest_level_limits_all_that_it_says():
    code = """
import os, resource
from nested_rl.jobs.confine import Walls
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))  # a limit that is lower already stays as it is
Walls("limits", None, "/", -1).enter(cpu_s=7, memory_bytes=1 << 30, file_bytes=1 << 20)
names = ("CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE")
print([resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names], os.getcwd(), os.getsid(0) == os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"[7, {1 << 30}, {1 << 20}, 1, 12, 0] / True\n"


def test_jobs_check_runs_no_foreign_code_behind_limits_alone_unless_told_to(tmp_path, monkeypatch, capsys):
    from nested_rl import cli
    from nested_rl.inner.nano import NanoInnerTrainer
    from nested_rl.types import Validation

    asked = []

    async def level(self):
        return "limits"

    async def validate(self, draft):
        asked.append(draft)
        return Validation(ok=True, base="nano-m")

    monkeypatch.setattr(NanoInnerTrainer, "sandbox_level", level)
    monkeypatch.setattr(NanoInnerTrainer, "validate", validate)
    (tmp_path / "job.toml").write_text("")
    assert cli.main(["jobs", "check", str(tmp_path)]) == 2
    assert "--allow-weak-sandbox" in capsys.readouterr().err
    assert not asked
    assert cli.main(["jobs", "check", str(tmp_path), "--allow-weak-sandbox"]) == 0
    assert asked


def test_jobs_check_tells_of_a_secret_as_a_submission_is_told(tmp_path, monkeypatch, capsys):
    from nested_rl import cli

    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789abcdef")
    (tmp_path / "job.toml").write_text("# sk-canary-0123456789abcdef\n")
    assert cli.main(["jobs", "check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "[files.secret]" in out
    assert "sk-canary" not in out
