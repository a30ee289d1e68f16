"""The retrospective: every sentence from the records, nobody's text as markup, and a page for any run."""

import re
from pathlib import Path

import pytest
from attrs import evolve
from made_run import make_run
from test_report import HOSTILE

from nested_rl.cli import runfile
from nested_rl.report import advice, digest, intervals, stages
from nested_rl.retro import retro, write_retro
from nested_rl.rundir import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", steps=12, groups_per_step=3, group_size=4)


@pytest.fixture(scope="module")
def text(run):
    return retro(run)


def section(text, title):
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_it_has_its_sections_and_lies_in_the_run(told, run, text):
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert titles == [
        "In short",
        "What was asked",
        "What happened",
        "What it cost",
        "What went wrong",
        "Episodes to look at",
        "What to try next",
    ]
    code, out, _ = told("retro", run.path)
    assert (code, out) == (0, f"{run.path / 'retrospective.md'}\n")
    assert (run.path / "retrospective.md").read_text(encoding="utf-8") == text


def test_the_stages_are_thirds_with_the_means_of_their_episodes(run, text):
    found = digest.read(run)
    rewards = {
        stage.name: [
            e.reward
            for e in run.episodes()
            if not e.masked and 3 * (stage.steps[0] - 1) <= e.group < 3 * stage.steps[-1]
        ]
        for stage in stages.of(found)
    }
    assert [str(stage) for stage in stages.of(found)] == ["steps 1–4", "steps 5–8", "steps 9–12"]
    row = next(line for line in text.splitlines() if line.startswith("| reward |"))
    assert row == "| reward | " + " | ".join(str(intervals.of(values)) for values in rewards.values()) + " |"
    change = intervals.apart(rewards["middle"], rewards["beginning"])
    assert f"From the beginning to the middle: reward {change.signed()}" in text


def test_links_lead_to_episodes_and_only_from_within_the_run(run, text, tmp_path):
    links = re.findall(r"\]\((episodes/[^)]*)\)", text)
    assert links
    assert all((run.path / link).is_dir() for link in links)
    elsewhere = write_retro(run, tmp_path / "pilot.md").read_text(encoding="utf-8")
    assert "](" not in elsewhere
    assert re.sub(r"\[([\d-]+)\]\([^)]*\)", r"`\1`", text) == elsewhere


def test_failures_are_counted_with_the_version_they_were_last_seen_at(run, text):
    found = digest.read(run)
    for failure in found.failures.values():
        row = next(line for line in section(text, "What went wrong").splitlines() if f"| `{failure.kind}` |" in line)
        assert f"| {failure.count} (" in row
        assert f"[{failure.place}]" in row
        newest = run.read_episode(*map(int, failure.place.split("-"))).version
        assert ("the end" if newest >= 10 else f"version {newest}") in row


def test_the_best_job_is_quoted_as_it_was_written(run, text):
    best = max((e for e in run.episodes() if e.validations), key=lambda e: (e.reward, -e.group, -e.member))
    folder = run.episode_dir(best.group, best.member) / "attempts" / str(len(best.validations)) / "files"
    for name in ("job.toml", "environment.py"):
        assert f"# {name}\n{(folder / name).read_text().rstrip()}\n```" in text


def test_nobodys_text_is_markup(tmp_path):
    hostile = HOSTILE + "\n```\n# a heading\n[x](javascript:alert(1))\n````\n"
    run = make_run(tmp_path / "a `b` <i> | *c* _d_", steps=2, groups_per_step=2, group_size=4, text=hostile)
    text = retro(run)
    assert text.startswith("# Retrospective: a \\`b\\` \\<i\\> \\| \\*c\\* \\_d\\_\n")
    fence = re.search(r"^(`{3,})text\n# environment\.py\n(.*?)\n\1$", text, flags=re.MULTILINE | re.DOTALL)
    assert "# a heading" in fence[2]
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "heading" not in outside
    assert "<script>" not in re.sub(r"`[^`\n]*`", "", outside)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_long_jobs_are_cut(tmp_path):
    run = make_run(tmp_path / "run", steps=2, groups_per_step=3, group_size=8, text="x = 1\n" * 500)
    assert "[440 more lines]" in retro(run)


@pytest.mark.parametrize("done", [0, 1, 4, 7])
def test_any_run_has_one(tmp_path, done):
    run = make_run(tmp_path / "run", steps=25, done=done, groups_per_step=2, group_size=4, evals=False)
    text = retro(RunDir.open(run.path))
    assert f"{done} of 25 steps done" in text
    assert ("beginning" in text) == (done == 7)
    assert not re.search(r"\bnan\b", text)
    assert "What to try next" in text


def test_stops_failures_and_alarms_are_told(tmp_path):
    run = make_run(tmp_path / "run", steps=3, done=1, groups_per_step=2, group_size=4, evals=False)
    tell = lambda event, **fields: run.journal.append({"t": 1.75e9, "event": event, **fields})  # noqa: E731
    tell("alarm", name="disk", message="0.5 GiB are free `here`")
    tell("run.failed", error="RunDirError: no room | left")
    tell("run.started")
    tell("run.stopped")
    run.close()
    text = retro(run)
    assert "Alarm `disk` in steps 2 (" not in text
    assert "Alarm `disk` in step 2 (the disk of the run directory is nearly full): `0.5 GiB are free 'here'`." in text
    assert "An error ended a process at 2025-06-15 15:06 UTC: `RunDirError: no room ¦ left`." in text
    assert "Somebody stopped it at 2025-06-15 15:06 UTC." in text
    assert "worked on by 2 processes" in text


PLACE = Path(__file__).parents[2] / "docs" / "retrospectives"


@pytest.mark.parametrize("name", sorted(path.stem for path in PLACE.glob("*.toml")))
def test_the_pilots_of_the_docs_can_be_run_again_and_have_their_page(name):
    file = PLACE / f"{name}.toml"
    made = runfile.experiment(runfile.read(file), beside=PLACE)
    assert {family.name for family in made.tasks} == {"calc_chain", "string_pipeline", "dispatch"}
    page = file.with_suffix(".md").read_text(encoding="utf-8")
    assert page.startswith(f"# Retrospective: {name}\n")
    assert f"[{name}]({name}.md)" in (PLACE / "index.md").read_text(encoding="utf-8")


@pytest.fixture
def learned(run):
    return digest.read(run)


def said(found, words):
    return any(words in line for line in advice.of(found))


def with_column(found, key, value):
    return evolve(found, rows=[{**row, key: value} for row in found.rows])


@pytest.mark.parametrize(
    ("key", "bad", "good", "words"),
    [
        ("ess", 0.2, 0.9, "Smaller updates"),
        ("validation/valid", 0.3, 0.9, "Validity first"),
        ("groups/zero_advantage", 2.0, 0.0, "tells more apart"),
        ("base/share_strongest", 0.5, 0.95, "The choice of base"),
        ("job/share_advanced", 0.0, 0.5, "optional table"),
    ],
)
def test_advice_follows_from_what_was_recorded(learned, key, bad, good, words):
    assert said(with_column(learned, key, bad), words)
    assert not said(with_column(learned, key, good), words)


def test_advice_on_counts(learned):
    assert said(evolve(learned, own_above=learned.scored), "rewards that jobs give themselves")
    assert not said(evolve(learned, own_above=0), "rewards that jobs give themselves")
    assert said(evolve(learned, cut_off=learned.answers), "Longer answers")
    assert not said(evolve(learned, cut_off=0), "Longer answers")
    assert said(evolve(learned, masked=learned.episodes), "Steadier machines")
    assert said(evolve(learned, held_out=[]), "held out")
    assert not said(learned, "held out")


@pytest.mark.parametrize(
    ("last", "words"),
    [(0.9, "More steps: the reward"), (0.1, "Fewer steps"), (0.5, "Something else than more steps")],
)
def test_advice_on_the_length_compares_the_last_third_with_the_middle(learned, last, words):
    for step, sums in learned.sums.items():
        middle = 0.5 if step <= 8 else last
        sums.rewards = [middle - 0.05, middle + 0.05] * 6
    assert said(learned, words)
