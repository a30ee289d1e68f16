"""Two runs on one page: the differences are the records', with intervals, and the page says what cannot be compared."""

import json
import re

import pytest
from made_run import make_run
from test_report import Page

from nested_rl.errors import SettingsError
from nested_rl.report import compare as comparing
from nested_rl.report.compare import compare
from nested_rl.run import Run
from nested_rl.rundir import RunDir


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One learns, the other is stopped before it has learned much and pays with another reward."""
    root = tmp_path_factory.mktemp("runs")
    first = make_run(root / "first", steps=10, groups_per_step=3, group_size=4)
    second = make_run(root / "second", steps=10, done=2, groups_per_step=3, group_size=4, seed=1)
    toml = second.path / "run.toml"
    toml.write_text(toml.read_text() + '\n[parts.reward]\nname = "mine <script>"\n')
    return RunDir.open(first.path), RunDir.open(second.path)


def last_rewards(run, steps):
    groups = {g for e in run.events("step.done") if e["step"] in steps for g in e["groups"]}
    return [e.reward for e in run.episodes() if e.group in groups and not e.masked]


def test_a_difference_is_second_minus_first_with_an_interval(runs):
    first, second = runs
    found = compare(first, second)
    reward = found.differences[0]
    ours, theirs = last_rewards(first, (7, 8, 9)), last_rewards(second, (0, 1))
    assert reward.ours == pytest.approx(sum(ours) / len(ours))
    assert reward.theirs == pytest.approx(sum(theirs) / len(theirs))
    assert reward.difference.value == pytest.approx(reward.theirs - reward.ours)
    assert reward.difference.low < reward.difference.value < reward.difference.high < 0
    assert reward.clear


def test_evaluations_are_paired_by_task(tmp_path, runs):
    other = make_run(tmp_path / "other", steps=5, groups_per_step=3, group_size=4)
    found = compare(runs[0], RunDir.open(other.path))
    paired = {d.name: d for d in found.differences if d.paired}
    assert set(paired) == {"Reward on triage, last version evaluated", "Reward on validation tasks, last version"}
    reports = [run.evals()["triage-best"]["rows"] for run in (runs[0], other)]
    assert paired["Reward on triage, last version evaluated"].difference.n == len(
        {row["task"] for row in reports[0]} & {row["task"] for row in reports[1]}
    )


def test_a_run_against_a_copy_of_itself_has_no_clear_difference(tmp_path):
    a, b = (make_run(tmp_path / name / "run", steps=4, groups_per_step=3, group_size=4) for name in "ab")
    found = compare(RunDir.open(a.path), RunDir.open(b.path))
    assert found.names == ("a/run", "b/run")
    assert all(d.difference.value == 0 for d in found.differences)
    assert comparing.verdict(found) == "No difference is clear."
    assert not found.settings
    assert not found.cautions


def test_what_cannot_be_compared_is_said(runs):
    found = compare(*runs)
    text = str(found)
    assert "different rewards" in text
    assert "Not both runs are finished" in text
    assert ("parts.reward.name", "(the default)", "mine <script>") in found.settings
    first, second = (run.path / "evaluations.json" for run in runs)
    first.write_text('{"calc_chain-k3": {"hidden": "a"}}')
    second.write_text('{"calc_chain-k3": {"hidden": "b"}}')
    assert "hidden items of its own" in str(compare(*runs))
    first.unlink()
    second.unlink()


def test_the_page_is_inert_and_whole(runs):
    path = compare(*runs).write()
    assert path == runs[0].path / "comparison-second.html"
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in page.tags
    assert not page.events
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert "http://" not in text
    assert "https://" not in text
    for words in ("Differences", "Reward by family", "Asked for baselines", "mine <script>", "unknown-key"):
        assert words in page.text
    assert all(re.search(r'aria-label="[^"]{10,}"', svg) for svg in re.findall(r"<svg viewBox[^>]*>", text))


def test_links_lead_to_both_reports_from_wherever_the_page_is(runs, tmp_path):
    for run in runs:
        (run.path / "report.html").write_text("x")
    path = compare(*runs).write(tmp_path / "page.html")
    links = [link for link in Page(path.read_text()).links if link.endswith("report.html")]
    assert [(tmp_path / link).resolve() for link in links] == [(run.path / "report.html").resolve() for run in runs]


def test_runs_that_cannot_be_compared_are_refused(runs, tmp_path):
    with pytest.raises(SettingsError, match="is both runs"):
        compare(runs[0], RunDir.open(runs[0].path))
    empty = RunDir.create(tmp_path / "empty", {"steps": 3})
    empty.close()
    with pytest.raises(SettingsError, match="has no step yet"):
        compare(runs[0], RunDir.open(empty.path))


def test_from_a_script_and_from_the_command_line(runs, told):
    found = Run(runs[1].path).compare(Run(runs[0].path))
    assert found.names == ("first", "second")
    code, out, _ = told("report", runs[0].path, runs[1].path)
    assert (code, out.startswith("second against first, over the last 3 steps of each: reward ")) == (0, True)
    assert out.endswith(f"Page: {runs[0].path / 'comparison-second.html'}\n")
    code, out, _ = told("report", runs[0].path, runs[1].path, "--json")
    rows = {row["name"]: row for row in json.loads(out)["differences"]}
    assert rows["reward"]["difference"] == pytest.approx(rows["reward"]["second"] - rows["reward"]["first"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--json",), "for two runs"),
        (("--transcripts", "99999"), "no finished episode '99999'"),
    ],
)
def test_options_of_the_other_form_are_refused(runs, told, argv, words):
    code, _, err = told("report", runs[0].path, *argv)
    assert code == 2
    assert words in err


def test_transcripts_are_of_one_run_and_on_demand(runs, told):
    code, out, _ = told("report", runs[0].path, "--transcripts", "0", "--transcripts", "1-2")
    assert code == 0
    assert f"Transcripts: 5, the first {runs[0].path / 'transcripts' / '00000-0.html'}" in out
    assert (runs[0].path / "transcripts" / "00001-2.html").is_file()
    code, _, err = told("report", runs[0].path, runs[1].path, "--transcripts", "0")
    assert code == 2
    assert "for one run" in err
