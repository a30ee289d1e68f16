"""Every episode is reached from the report, and a reward of one's own has its second rung too."""

import random
import re

import pytest
from attrs import evolve
from made_run import made_episode, make_run
from test_report import Page

from nested_rl.report import digest, index, pictures
from nested_rl.report.page import render, write_report
from nested_rl.report.transcripts import select, write_transcripts
from nested_rl.rundir import RunDir

COMMAND = "nested-rl report RUN --transcripts all"


@pytest.fixture
def run(tmp_path):
    return RunDir.open(make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=4).path)


def test_the_report_leads_to_a_list_of_every_episode(run):
    report = Page(write_report(run).read_text())
    assert "transcripts/index.html" in report.links
    assert COMMAND in report.text
    text = (run.path / "transcripts" / "index.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert "24 episodes" in page.text
    assert COMMAND in page.text
    links = [link for link in page.links if re.search(r"\d{5}-\d", link)]
    assert len(links) == 24
    assert all((run.path / "transcripts" / link).exists() for link in links)
    assert {link.removesuffix(".html") for link in links if link.endswith(".html")} == {
        path.stem for path in (run.path / "transcripts").glob("*-*.html")
    }
    episode = run.read_episode(3, 2)
    row = re.search(r"<tr>[^\n]*00003-2[^\n]*</tr>", text).group()
    reward = "masked" if episode.masked else f"{episode.reward:.2f}"
    assert re.findall(r">([^<>]+)</td>", row) == [
        str(episode.version),
        episode.task.family,
        reward,
        "–" if episode.masked else "yes" if episode.outcome.valid else "no",
    ]


def test_with_all_pages_written_nothing_is_left_to_be_written(run):
    write_transcripts(run, select(run, ["all"]))
    assert COMMAND not in Page(write_report(run).read_text()).text
    page = Page((run.path / "transcripts" / "index.html").read_text())
    assert COMMAND not in page.text
    assert not [link for link in page.links if link.startswith("../episodes/")]


def test_five_thousand_are_a_light_page(run):
    entries = [digest.Entry(n // 8, n % 8, n // 32, "string_pipeline", 0.5, True) for n in range(5000)]
    text = index.render(run, evolve(digest.read(run), index=entries))
    assert text.count("<tr>") == 5001
    assert len(text) < 1_500_000


def test_a_name_that_is_markup_stays_text(run):
    entry = digest.Entry(0, 0, 0, "<script>x</script>\u202e", 0.5, True)
    text = index.render(run, evolve(digest.read(run), index=[entry], name="<img src=x>"))
    assert "<script>" not in text
    assert "<img" not in text
    assert "⟨U+202E⟩" in text


@pytest.fixture
def one_number(tmp_path):
    """A run whose reward is a number without parts."""
    run = make_run(tmp_path / "run", steps=3, groups_per_step=2, group_size=4)
    run.rewrite_metrics(
        [{k: v for k, v in row.items() if not k.startswith("reward/") or k == "reward/mean"} for row in run.metrics()]
    )
    for episode in list(run.episodes()):
        run.write_episode(evolve(episode, parts={}), files={})
    return RunDir.open(run.path)


def test_a_reward_without_parts_has_no_empty_chart_and_its_uplift_as_the_second_rung(one_number):
    found = digest.read(one_number)
    drawn = {picture.title: picture for several in pictures.draw(found).values() for picture in several}
    assert "Parts of the reward" not in drawn
    names = [name for name, _ in drawn["The two rungs"].chart.key]
    assert names == ["valid at the first try", "valid in the end", "uplift of valid jobs"]
    assert all(picture.chart.key for picture in drawn.values())
    assert "Parts of the reward" not in render(one_number)


def test_the_default_reward_keeps_its_quality(run):
    (rungs,) = [p for p in pictures.draw(digest.read(run))["learning"] if p.title == "The two rungs"]
    assert [name for name, _ in rungs.chart.key][-1] == "quality of valid jobs"


def test_the_uplift_is_that_of_valid_jobs():
    rng = random.Random(1)
    made = [made_episode(rng, group=1, member=m, family="triage", version=0, skill=0.4)[0] for m in range(20)]
    sums = digest.StepSums(uplift=[e.outcome.uplift for e in made], valid=[float(e.outcome.valid) for e in made])
    assert pictures._uplift_given_valid(sums) == [e.outcome.uplift for e in made if e.outcome.valid]
