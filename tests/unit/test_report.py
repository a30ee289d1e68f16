"""The report page: self-contained, offline, inert, and right about the run; finished or not, small or very large."""

import contextlib
import html.parser
import json
import math
import random
import re
import shutil

import pytest
from attrs import evolve
from made_run import made_episode, made_eval, make_run

from nested_rl.report import charts, digest, intervals
from nested_rl.report.charts import Series
from nested_rl.report.page import render, summary, write_report
from nested_rl.report.showcase import highlighted, inert
from nested_rl.rundir import RunDir

VOID = {"meta", "link", "br", "img", "input", "hr", "path", "use", "rect", "polyline", "circle", "line"}
HOSTILE = (
    '"""</code></pre></details><script>alert(1)</script><img src=x onerror=alert(2)>\n'
    "<style>body{display:none}</style><a href=javascript:alert(3)>x</a> {{ 7 * 7 }} {% raw %}\n"
    '<svg onload=alert(4)> &lt;b&gt; \x1b[31m \u202e gpj.exe \x00"""\n'
)


class Page(html.parser.HTMLParser):
    """Checks nesting, and collects what could run, load or collide."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.ids, self.events, self.texts = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "xlink:href", "action", "srcset", "data")]
        self.links += re.findall(r"url\(([^)]*)\)", attrs.get("style") or "")
        self.ids += [attrs["id"]] if "id" in attrs else []
        self.events += [k for k in attrs if k.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "pilot", groups_per_step=2, group_size=4)


@pytest.fixture(scope="module")
def text(run):
    return render(run)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_report_is_one_file_in_the_run_directory(run):
    path = write_report(run)
    assert path == run.path / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert path.stat().st_size < 1_000_000


def test_nothing_is_loaded_and_nothing_can_run(page, text):
    assert "script" not in page.tags
    assert not page.events
    assert {link for link in page.links if not link.startswith(("#", "episodes/", "transcripts/"))} == {"data:,"}
    assert "Content-Security-Policy" in text
    assert "default-src 'none'" in text
    assert "http://" not in text
    assert "https://" not in text


def test_ids_are_unique_and_every_inner_link_has_its_target(page):
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_episodes_are_linked_to_pages_of_their_own_or_to_their_folders(run):
    shutil.rmtree(run.path / "transcripts", ignore_errors=True)
    folders = {link for link in Page(render(run)).links if link.startswith("episodes/")}
    assert folders
    assert all((run.path / folder).is_dir() for folder in folders)
    links = Page(write_report(run).read_text(encoding="utf-8")).links
    pages = {link for link in links if link.startswith("transcripts/")} - {"transcripts/index.html"}
    assert {f"episodes/{link[12:-5]}/" for link in pages} == folders
    assert all((run.path / link).is_file() for link in pages)


def test_while_a_run_goes_on_the_page_of_an_episode_is_written_once(tmp_path):
    run = make_run(tmp_path / "run", steps=3, done=2, groups_per_step=2, group_size=4)
    write_report(run)
    before = {path: path.stat().st_mtime_ns for path in (run.path / "transcripts").glob("*-*.html")}
    assert before
    write_report(run)
    assert {path: path.stat().st_mtime_ns for path in (run.path / "transcripts").glob("*-*.html")} == before


def test_the_headline_says_what_the_records_say(run):
    rows = run.metrics()
    text = summary(run)
    start, end = rows[0]["reward/mean"], sum(row["reward/mean"] for row in rows[-3:]) / 3
    assert f"Reward went from {start:.2f} [" in text
    assert f"to {end:.2f} [" in text
    assert f"{100 * rows[0]['validation/first_try']:.0f} % at the start" in text
    reports = run.evals()
    best, initial = reports["triage-best"]["reward"], reports["triage-initial"]["reward"]
    assert f"On triage, held out from training: {best:.2f} against {initial:.2f} untrained" in text
    assert f"difference {best - initial:+.2f} [" in text
    assert "(48 pairs)" in text
    assert f"It ran {round(sum(row['jobs/run'] for row in rows))} jobs for training (" in text
    assert "cost $0.50" in text
    assert text.endswith(str(run.path / "report.html"))


def test_another_policy_evaluated_in_the_run_is_no_sign_of_learning(tmp_path):
    run = make_run(tmp_path / "pilot", steps=5, evals=False)
    run.own()
    with contextlib.closing(run):
        made_eval(run, "triage-best", f"{run.path}@best", 5, "test", 0.9)
        made_eval(run, "triage-openai", "openai:m@http://localhost/v1", 0, "test", 0.1)
    assert "untrained" not in summary(run)


def test_the_page_has_every_section(page):
    for words in (
        "The two rungs",
        "Parts of the reward",
        "What the agent chooses",
        "Before and after",
        "Staleness",
        "Importance ratios",
        "Dollars so far",
        "Best job",
        "Most instructive job",
        "Worst job",
        "unknown-key",
        "did you mean 'learning_rate'?",
        "MachineLost",
        "Metrics by step",
        "groups_per_step",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") >= 4 + 3 + 2 + 2


def test_the_best_job_is_shown_as_it_was_written(run, page):
    found = digest.read(run)
    best = max((e for e in run.episodes() if not e.masked), key=lambda e: e.reward)
    assert found.notable["best"].reward == best.reward
    assert found.notable["worst"].outcome.valid
    assert found.notable["worst"].reward == min(e.reward for e in run.episodes() if e.outcome.valid)
    assert found.notable["instructive"].outcome.attempts > 1
    written = (
        run.path / "episodes" / f"{best.group:05d}-{best.member}" / "attempts/1/files/environment.py"
    ).read_text()
    assert " ".join(written.split()) in page.text
    assert "learning_rat = 1e-3" in page.text
    assert "- learning_rat" in page.text


def test_every_reason_to_look_keeps_the_most_extreme_episode(run):
    """Against plain loops over all episodes."""
    found = digest.read(run).notable
    real = [e for e in run.episodes() if not e.masked]
    gaps = {id(e): e.result.curve[-1] - e.outcome.post.value for e in real if e.outcome.post}
    above = [e for e in real if gaps.get(id(e), 0.0) >= 0.5]
    assert (found["another reward"] is None) == (not above)
    if above:
        assert found["another reward"].reward in {e.reward for e in above}
    first = [e for e in real if e.version == 0 and e.outcome.valid]
    assert found["early"].reward == max(e.reward for e in first)
    refused = [e for e in real if not e.outcome.valid]
    assert found["late refusal"].version == max(e.version for e in refused)
    weaker = [
        (e.outcome.post.value - e.outcome.best_baseline.value, e)
        for e in real
        if e.outcome.post and e.outcome.base != max(e.outcome.baselines, key=lambda b: e.outcome.baselines[b].value)
    ]
    clear = [(value, e) for value, e in weaker if value > 2 * e.outcome.noise]
    assert (found["weaker base"] is None) == (not clear)
    told = found.told()
    assert len({(e.group, e.member) for e, _ in told}) == len(told)
    assert sum(len(said) for _, said in told) == len(found.found)


def test_episodes_worth_a_look_are_on_the_page_with_their_reason(page, run):
    early = digest.read(run).notable["early"]
    assert f"Episode {early.group:05d}-{early.member} ({early.task.family}, version 0)" in page.text
    assert "the best of the untrained agent" in page.text


def test_failures_are_counted_by_episode_with_an_example(run):
    found = digest.read(run)
    wrong = [e for e in run.episodes() if any(p.code == "unknown-key" for v in e.validations for p in v.problems)]
    failure = found.failures["agent", "unknown-key"]
    assert failure.count == len(wrong)
    assert failure.place == f"{wrong[-1].group:05d}-{wrong[-1].member}"
    assert found.failures["infra", "MachineLost"].count == found.masked == sum(e.masked for e in run.episodes())


@pytest.mark.parametrize(("end", "kind"), [("stop", "gave up"), ("tokens", "out of tokens"), ("submitted", None)])
def test_how_an_episode_ended_is_a_failure_when_it_was_one(end, kind):
    episode, _ = made_episode(random.Random(1), group=0, member=0, family="dispatch", version=0, skill=1.0)
    transcript = evolve(episode.transcript, end=end)
    found = digest.Digest(name="", spec={}, rows=[], steps_asked=1)
    digest._add(found, evolve(episode, transcript=transcript, validations=()), 1)
    assert [failure.kind for failure in found.failures.values()] == ([kind] if kind else [])


def test_the_table_for_screen_readers_has_every_step(text):
    table = text[text.index("Metrics by step</summary>") :]
    assert len(re.findall(r'<th scope="row" class="n">\d+</th>', table)) == 25
    for figure in re.findall(r"<svg viewBox[^>]*>", text):
        assert 'role="img"' in figure
        assert re.search(r'aria-label="[^"]{10,}"', figure)


def test_hostile_text_is_inert(tmp_path):
    run = make_run(tmp_path / "<b>run", steps=2, groups_per_step=2, group_size=4, text=HOSTILE)
    text = render(run)
    page = Page(text)
    assert not {"script", "img", "a onload"} & set(page.tags)
    assert page.tags.count("style") == 1
    assert not page.events
    assert all(not link.startswith("javascript") for link in page.links)
    assert "<script>alert(1)</script>" in page.text, "shown as text"
    assert "{{ 7 * 7 }}" in page.text
    assert "⟨U+202E⟩" in page.text
    assert "⟨U+001B⟩" in page.text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "<b>run" in page.text


def test_invisible_characters_are_spelled_out():
    assert inert("a\tb\nc") == "a\tb\nc"
    assert inert("\u2066\x7f\ufeff") == "⟨U+2066⟩⟨U+007F⟩⟨U+FEFF⟩"
    assert "<script" not in highlighted("<script>", "x.toml")


def test_big_files_are_cut_and_the_page_says_where_the_rest_is(tmp_path):
    run = make_run(tmp_path / "run", steps=1, groups_per_step=2, group_size=4, text="x = 1\n" * 100_000)
    text = render(run)
    assert len(text) < 3_000_000
    assert "576,000 more characters are in episodes/" in text


@pytest.mark.parametrize("done", [0, 1, 2, 7])
def test_an_unfinished_run_has_a_page(tmp_path, done):
    run = make_run(tmp_path / "run", steps=25, done=done, groups_per_step=2, group_size=4)
    with run.metrics_log.path.open("a") as file:
        file.write('{"step": 99, "rew')  # the row that was being written
    page = Page(render(RunDir.open(run.path)))
    assert f"{done} of 25 steps done" in page.text
    assert ("No step is done yet (4 episodes so far)" in page.text) == (done == 0)
    assert ("The two rungs" in page.text) == (done > 0)


def test_a_run_directory_with_nothing_but_the_question_has_a_page(tmp_path):
    run = RunDir.create(tmp_path / "run", {"steps": 3})
    run.close()
    assert "No step is done yet (0 episodes so far)" in Page(render(run)).text
    assert "Report:" in summary(run)


def test_a_share_of_no_valid_job_is_not_known_rather_than_nought(tmp_path):
    run = make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=4)
    rows = run.metrics()
    rows[0] |= {"validation/valid": 0.5}
    rows[1] |= {"validation/valid": 0.0, "base/share_strongest": 0.0, "tools/baselines": 0.0}
    run.rewrite_metrics(rows)
    found = digest.read(run)
    assert math.isnan(found.column("base/share_strongest")[1])
    assert found.column("tools/baselines")[1] == 0.0
    assert math.isfinite(found.column("base/share_strongest")[0])
    assert found.end("base/share_strongest").n == sum(row["validation/valid"] > 0 for row in rows) < 3


def test_a_reward_of_ones_own_with_other_names_and_any_size(tmp_path):
    run = make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=4)
    rows = run.metrics()
    for row in rows:
        del row["reward/quality"], row["reward/validation"], row["reward/speed"]
        row["reward/mean"], row["reward/thrift <i>"] = -3.5, -12.0
    run.rewrite_metrics(rows)
    text = render(run)
    assert "-3.50" in text
    assert "thrift &lt;i&gt;" in text
    assert "thrift <i>" not in text


class Many(RunDir):
    """Thousands of episodes, made as they are read."""

    made = 5000

    def episodes(self, *, under="episodes", left_out=None, but=()):
        rng = random.Random(0)
        for number in range(self.made):
            group, member = divmod(number, 8)
            family = ("calc_chain", "string_pipeline", "dispatch")[group % 3]
            yield made_episode(rng, group=group, member=member, family=family, version=0, skill=0.5)[0]


def test_five_thousand_episodes_fit_on_a_page(tmp_path):
    make_run(tmp_path / "run", steps=2, groups_per_step=2, group_size=4)
    run = Many(tmp_path / "run")
    row = run.metrics()[0]
    run.rewrite_metrics([{**row, "step": step} for step in range(157)])
    for step in range(2, 157):
        groups = list(range(step * 4, step * 4 + 4))
        run.journal.append(
            {"t": 1.8e9 + step, "event": "step.done", "step": step, "version": step + 1, "groups": groups}
        )
    run.close()
    text = render(run)
    assert "5,000 episodes" in text
    assert len(text) < 3_000_000
    Page(text)


def test_an_interval_narrows_with_more_values():
    wide, narrow = intervals.of([0.0, 1.0] * 4), intervals.of([0.0, 1.0] * 400)
    assert wide.value == narrow.value == 0.5
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
    assert math.isnan(intervals.of([]).value)
    assert math.isnan(intervals.of([0.3]).low)
    paired = intervals.paired([0.6] * 20, [0.5] * 20)
    assert paired.low == pytest.approx(0.1) == paired.high


def test_a_long_line_is_thinned_and_keeps_its_end():
    series = Series(name="x", x=list(range(1, 10_001)), y=[0.5] * 9_999 + [1.0])
    chart = charts.lines("long", [series], alt="a long line, thinned")
    assert len(chart.svg) < 60_000
    thinned = charts._thinned(series)
    assert thinned[0][-1] == 10_000
    assert thinned[1][-1] == 1.0


def test_colours_are_variables_of_the_page_so_that_dark_mode_works():
    chart = charts.lines("c", [Series(name="x", x=[1, 2], y=[0.1, 0.2])], alt="two points")
    assert "var(--s1)" in chart.svg
    assert not re.search(r"(?<!&)#[0-9a-f]{6}", chart.svg)


def test_the_page_is_the_same_every_time(run):
    assert render(RunDir.open(run.path)) == render(run)


def test_the_fixture_reads_back(run):
    json.dumps(run.evals())
    assert sum(1 for _ in run.episodes()) == 200
