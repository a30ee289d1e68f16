"""The documentation holds: its Python runs, its commands exist, its links lead somewhere, its figures are the measured ones."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROSE = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(
    r"^(?P<note><!-- not run: [^>]+ -->\n)?```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")

pytestmark = pytest.mark.timeout(300)

RUNNER = """
import json, sys
from nested_rl.experiment import Experiment

run, evaluate = Experiment.run_async, Experiment.evaluate_async

async def briefly(self, steps=25, **asked):
    # As printed, but for the lengths.
    return await run(self, min(steps, 1), **{**asked, "groups_per_step": 1, "group_size": 6, "eval_every": 0})

async def a_few(self, tasks, **asked):
    return await evaluate(self, tasks, **{**asked, "n": 2})

Experiment.run_async, Experiment.evaluate_async = briefly, a_few
page, names = sys.argv[1], {"__name__": "__main__"}
for line, code in json.loads(sys.stdin.read()):
    exec(compile("\\n" * line + code, page, "exec", dont_inherit=True), names)
"""


def blocks(page: Path, kind: str, *, unmarked: bool = True) -> list[tuple[int, str]]:
    """(lines before it, code) of a page's blocks; `unmarked` leaves out those that say why they are not run."""
    text = page.read_text(encoding="utf-8")
    found = [m for m in BLOCK.finditer(text) if m["kind"] == kind and not (unmarked and m["note"])]
    return [(text.count("\n", 0, m.start("code")), m["code"]) for m in found]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _runnable() -> list:
    """Pages with code. The first ones that anybody reads are fast tests; all guides take a minute."""
    first = {ROOT / "README.md", ROOT / "docs" / "quickstart.md"}
    pages = [page for page in PAGES if blocks(page, "python")]
    return [pytest.param(page, marks=() if page in first else pytest.mark.slow, id=named(page)) for page in pages]


@pytest.mark.parametrize("page", _runnable())
def test_python_blocks_run(page, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, page],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        input=json.dumps(blocks(page, "python")),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_python_blocks_are_python(page):
    for line, code in blocks(page, "python", unmarked=False):
        compile("\n" * line + code, str(page), "exec", dont_inherit=True)


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_commands_exist(page):
    for _, code in blocks(page, "console", unmarked=False):
        for line in filter(None, code.splitlines()):
            _check_command(shlex.split(line))


def _check_command(words: list[str]) -> None:
    program = words[0].removeprefix(".venv/bin/")
    match program:
        case "nested-rl":
            said = _help(*_subcommand(words[1:]))
            for option in (word for word in words if word.startswith("--")):
                assert option in said, f"{option} of {' '.join(words)}"
        case "make":
            goals = [word for word in words[1:] if "=" not in word]
            subprocess.run(["make", "-n", *goals], cwd=ROOT, check=True, capture_output=True)
        case "python" | "python3":
            assert words[1] == "-m" or (ROOT / words[1]).is_file(), words
        case _:
            assert program == "pip", f"an unknown command: {words}"


def _subcommand(words: list[str]) -> list[str]:
    return words[:2] if words[0] in {"tasks", "jobs", "models", "machines"} else words[:1]


def _help(*command: str) -> str:
    from nested_rl.cli import app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        import io
        from contextlib import redirect_stdout

        with redirect_stdout(io.StringIO()) as out:
            app([*command, "--help"], exit_on_error=False, result_action="return_value")
    return out.getvalue()


def test_the_run_file_is_understood(tmp_path):
    from nested_rl.cli import runfile

    ((_, text),) = blocks(ROOT / "docs" / "quickstart.md", "toml")
    *_, (_, reward) = blocks(ROOT / "docs" / "quickstart.md", "python")
    (tmp_path / "thrifty.toml").write_text(text, encoding="utf-8")
    (tmp_path / "rewards.py").write_text(reward, encoding="utf-8")
    asked = runfile.read(tmp_path / "thrifty.toml")
    made = runfile.experiment(asked, beside=tmp_path)
    assert made.reward.__name__ == "thrifty"
    assert [family.name for family in made.tasks] == ["calc_chain", "string_pipeline"]
    assert made.compute.max_machines == 2
    assert asked.evaluate.families == ("triage",)


async def test_the_job_of_the_concepts_is_valid():
    from nested_rl import inner, tasks
    from nested_rl.types import Draft

    page = ROOT / "docs" / "concepts.md"
    ((_, toml),) = blocks(page, "toml")
    ((_, code),) = blocks(page, "python", unmarked=False)
    task = next(tasks.load("calc_chain", scale="nano")[0].tasks())
    trainer = inner.NanoInnerTrainer()
    try:
        verdict = await trainer.validate(Draft(task=task, files={"job.toml": toml, "environment.py": code}))
    finally:
        await trainer.close()
    assert (verdict.problems, verdict.families, verdict.base) == ((), ("calc_chain",), "nano-m")


@pytest.mark.parametrize("page", PROSE, ids=named)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(text):
        assert (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [page.parent / target for target in LINK.findall(page.read_text(encoding="utf-8"))]
    assert {p.resolve() for p in PROSE} <= seen


def test_figures_are_what_the_results_say():
    script = ROOT / "benchmarks" / "readme_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\nrun: python benchmarks/readme_tables.py"


def test_every_key_of_a_run_is_explained(tmp_path):
    """Whatever a run writes, docs/run-directory.md has its name."""
    code = "import nested_rl as nrl; nrl.Experiment().run(1, groups_per_step=1, eval_every=1, out='run', quiet=True)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=280)
    run = tmp_path / "run"
    rows = [tomllib.loads((run / "run.toml").read_text())]
    for path in run.rglob("*.jsonl"):
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    for path in (*run.glob("e*/**/*.json"), *run.glob("checkpoints/*/trainer.json")):
        rows.append(json.loads(path.read_text()))
    for by_split in json.loads((run / "baselines.json").read_text()).values():
        rows += [score for by_base in by_split.values() for score in by_base.values()]
    names = {name for row in rows for name in _keys(row)} | {row["event"] for row in rows if "event" in row}
    names |= {p.name for p in run.rglob("*") if p.is_file() and not {"files", "job", "transcripts"} & set(p.parts)}
    assert len(names) > 100
    text = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    told = {word for span in re.findall(r"`([^`\n]+)`", text) for word in (span, span.rpartition("/")[2])}
    told |= set(re.findall(r"^  ([\w.]+)", text, re.MULTILINE)) | {"salt"}  # the picture of the folder
    assert names - told == set()


def _keys(value: object) -> set[str]:
    """Every name in JSON that is not the name of a family, a base, a task or a setting."""
    if isinstance(value, list):
        return {name for entry in value for name in _keys(entry)}
    if not isinstance(value, dict):
        return set()
    inside = {name: part for name, part in value.items() if name not in {"baselines", "arguments", "recipe", "parts"}}
    return set(value) | {name for part in inside.values() for name in _keys(part)}


def test_sizes_of_the_models_are_right():
    from nested_rl.nano.folder import load_model, weights_path

    page = (ROOT / "docs" / "nano.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(nano-\w+)` \| ([\d,]+) \|", page, re.MULTILINE))
    assert told == {name: f"{load_model(weights_path(name))[0].size:,}" for name in told}
    assert len(told) == 3
