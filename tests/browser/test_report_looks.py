"""The report on narrow screens, with hostile lengths, on paper and by keyboard; measured by the browser that draws it."""

import pytest
from attrs import evolve
from made_run import make_run
from test_pages import PHONE, WIDER

from nested_rl.report.compare import compare
from nested_rl.report.page import write_report
from nested_rl.rundir import RunDir
from nested_rl.types import Problem

LONG = "a-name-that-nobody-would-give-" * 8
SIDEWAYS = "s => { const e = document.querySelector(s).closest('.wide'); return e.scrollWidth - e.clientWidth; }"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two runs; a machine and a problem of the first have names of absurd length."""
    root = tmp_path_factory.mktemp("looks")
    runs = [make_run(root / name, steps=8, groups_per_step=3, group_size=4, seed=n) for n, name in enumerate("ab")]
    first = runs[0]
    episode = next(e for e in first.episodes() if e.job_key)
    t = max(float(event["t"]) for event in first.events())
    about = {"job": "j", "delivery": 1, "key": episode.job_key, "machine": LONG}
    first.journal.append({"t": t + 1, "event": "job.started", **about})
    first.journal.append({"t": t + 9, "event": "job.done", "seconds": 7.0, **about})
    refused = evolve(
        episode.validations[-1], ok=False, problems=(Problem(code=LONG, where="x", message=LONG, brief=""),)
    )
    first.write_episode(evolve(episode, validations=(refused,)), files={})
    first.close()
    for run in runs:
        write_report(run)
    compare(*(RunDir.open(run.path) for run in runs)).write()
    return first.path


def test_no_name_is_so_long_that_the_page_becomes_wider(both, visit):
    for name in ("report.html", "comparison-b.html", "transcripts/index.html"):
        page, _ = visit(both / name, width=PHONE)
        assert page.evaluate(WIDER) <= 0, name


def test_a_phone_shows_whole_tables(both, visit):
    page, _ = visit(both / "report.html", width=PHONE)
    assert page.evaluate(SIDEWAYS, ".scores") <= 0
    caption = page.locator(".scores caption span").bounding_box()
    assert caption["x"] + caption["width"] <= PHONE
    page, _ = visit(both / "comparison-b.html", width=PHONE)
    assert page.evaluate(SIDEWAYS, ".differences") <= 0
    names = page.locator(".differences tbody th")
    assert max(names.nth(i).bounding_box()["height"] for i in range(5)) < 40  # a line each
    page, _ = visit(both / "transcripts" / "index.html", width=PHONE)
    assert page.evaluate(SIDEWAYS, ".close") <= 0


def test_a_tablet_has_two_charts_a_row(both, visit):
    page, _ = visit(both / "report.html", width=768)
    first, second = (page.locator("section[aria-labelledby=learning] figure").nth(i).bounding_box() for i in (0, 1))
    assert first["y"] == second["y"]


def test_the_way_to_the_content_covers_no_title(both, visit):
    page, _ = visit(both / "report.html", width=PHONE)
    page.keyboard.press("Tab")
    skip, title = page.locator(".skip").bounding_box(), page.locator("h1").bounding_box()
    assert skip["x"] >= 0
    assert skip["y"] + skip["height"] <= title["y"]


def test_paper_is_white_whatever_the_screen_is(both, visit):
    for name in ("report.html", "comparison-b.html", "transcripts/index.html"):
        page, _ = visit(both / name, scheme="dark")
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_list_of_episodes_leads_to_a_page_and_back(both, visit):
    page, seen = visit(both / "report.html")
    page.locator("a[href='transcripts/index.html']").click()
    page.locator("a[href='../report.html']").wait_for()
    page.locator("tbody a[href$='.html']").first.click()
    page.wait_for_url("**/transcripts/0*.html")
    assert page.locator("h1").text_content().startswith("Episode")
    assert (seen.console, seen.errors) == ([], [])
