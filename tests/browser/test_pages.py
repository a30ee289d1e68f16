"""The report and the episodes' pages as a reader's browser shows them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_run import compare_hostile_runs

SCRIPT = Path(__file__).parents[2] / "docs" / "make_pictures.py"

WIDE, PHONE = 1280, 390
CONTRAST = """
() => {
  const channel = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const node of document.querySelectorAll('main *')) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest('svg')) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found[node.tagName + '.' + node.className] = ratio.toFixed(2);
  }
  return found;
}
"""
WIDER = """
() => {
  document.querySelectorAll('details').forEach(d => d.open = true);
  return document.documentElement.scrollWidth - document.documentElement.clientWidth;
}
"""


def pages(run):
    """The report, and three episodes: one refused at first, one that trained, and the last."""
    episodes = list(run.episodes())
    mended = [e for e in episodes if len(e.validations) > 1]
    trained = [e for e in episodes if e.result and len(e.result.curve) > 1]
    chosen = {(e.group, e.member) for e in (*mended[:1], *trained[:1], episodes[-1])}
    return [run.path / "report.html", *(run.path / "transcripts" / f"{g:05d}-{m}.html" for g, m in sorted(chosen))]


def focused(page):
    return page.evaluate("() => [document.activeElement.tagName, document.activeElement.textContent.trim()]")


def access_key(page, letter):
    """Alt and a letter, as a keyboard sends them; playwright's own keys have no text while Alt is held."""
    key = {"key": letter, "code": f"Key{letter.upper()}", "windowsVirtualKeyCode": ord(letter.upper())}
    events = page.context.new_cdp_session(page)
    events.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", "modifiers": 1, **key})
    events.send(
        "Input.dispatchKeyEvent", {"type": "char", "modifiers": 1, "text": letter, "unmodifiedText": letter, **key}
    )
    events.send("Input.dispatchKeyEvent", {"type": "keyUp", **key})


def test_pages_are_drawn_without_a_word_on_the_console_or_a_request(run, visit, shoot):
    for path in pages(run):
        page, seen = visit(path)
        seen.nothing_but(path.as_uri())
        assert page.locator("h1").count() == 1
        assert page.locator("h1").is_visible()
        assert page.evaluate("() => document.body.innerText.length") > 500
        shoot(page, f"light-{path.stem}")


def test_pictures_are_seen_and_have_a_name(run, visit):
    for path in pages(run):
        page, _ = visit(path)
        page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        for picture in page.locator("svg").all():
            box = picture.bounding_box()
            assert min(box["width"], box["height"]) > 8, picture.get_attribute("class")
            assert picture.get_attribute("aria-label") or picture.locator("title").first.text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_in_light_and_in_dark(run, comparison, visit, shoot, scheme):
    for path in [comparison, *pages(run)]:
        page, _ = visit(path, scheme=scheme)
        page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", paper)[:3])) < 60) == (scheme == "dark")
        assert page.evaluate(CONTRAST) == {}
    shoot(page, f"{scheme}-unfolded")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(run, hostile, visit, shoot):
    for made in (run, hostile):
        for path in pages(made):
            page, _ = visit(path, width=PHONE, height=800)
            assert page.evaluate(WIDER) <= 0, path
        shoot(page, f"phone-{made.path.name}")


def test_the_first_key_leads_past_the_links(run, comparison, visit):
    for path in [comparison, *pages(run)]:
        page, _ = visit(path)
        page.keyboard.press("Tab")
        assert focused(page) == ["A", "Skip to content"]
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.querySelector(':target')?.id") == "content"
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.closest('#content') !== null")


def test_the_keyboard_alone_reaches_every_section(run, comparison, visit):
    for path in [comparison, *pages(run)]:
        page, _ = visit(path)
        page.keyboard.press("Tab")
        assert focused(page) == ["A", "Skip to content"]
        assert page.locator(".skip").bounding_box()["x"] >= 0
        sections = page.locator("nav[aria-label=Sections] a").all_text_contents()
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.append(focused(page)[1])
            if sections[-1] in reached:
                break
        assert set(sections) <= set(reached)
        page.keyboard.press("Enter")
        target = page.locator("nav[aria-label=Sections] a").last.get_attribute("href")
        assert page.url.endswith(target)
        assert page.locator(f"[id='{target[1:]}']").is_visible()


def test_what_is_folded_opens_by_keyboard(run, visit):
    page, _ = visit(pages(run)[0])
    fold = page.locator("details:not([open]) > summary").first
    handle = fold.element_handle()  # the locator would find the next one as soon as this one is open
    handle.focus()
    page.keyboard.press("Enter")
    assert handle.evaluate("node => node.parentElement.open")


def test_one_goes_from_episode_to_episode_and_to_the_report_by_key(run, visit):
    first, second = sorted((run.path / "transcripts").glob("*.html"))[:2]
    page, seen = visit(first)
    access_key(page, "n")
    page.wait_for_url(second.as_uri())
    access_key(page, "p")
    page.wait_for_url(first.as_uri())
    access_key(page, "r")
    page.wait_for_url((run.path / "report.html").as_uri())
    assert not seen.errors


def test_the_report_leads_to_pages_of_episodes_and_back(run, visit):
    report = run.path / "report.html"
    page, seen = visit(report)
    page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
    links = page.locator("a[href^='transcripts/']")
    names = {link.get_attribute("href") for link in links.all()}
    assert names
    assert all((run.path / name).is_file() for name in names)
    links.first.click()
    page.wait_for_url("**/transcripts/*.html")
    assert page.locator("h1").text_content().startswith("Episode")
    page.get_by_role("link", name="report").first.click()
    page.wait_for_url(report.as_uri())
    assert (seen.console, seen.errors) == ([], [])


def test_nothing_that_an_agent_writes_comes_to_life(hostile, visit, tmp_path):
    both = compare_hostile_runs(hostile, tmp_path)
    assert "owned" in both.read_text()
    for path in [both, hostile.path / "report.html", *sorted((hostile.path / "transcripts").glob("*.html"))]:
        page, seen = visit(path)
        page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
        page.mouse.click(200, 400)
        page.keyboard.press("Tab")
        seen.nothing_but(path.as_uri())
        assert page.evaluate("() => window.owned") is None
        assert page.title() != "owned"
        made = page.evaluate(
            "() => [...document.querySelectorAll('script, iframe, img, form, input, base, object')].length"
        )
        assert made == 0
        assert page.locator("body").is_visible()
        assert page.evaluate("() => /[\\u202a-\\u202e\\u2066-\\u2069\\x1b]/.test(document.body.textContent)") is False
        loose = page.evaluate("() => [...document.links].map(a => a.protocol).filter(p => p !== 'file:')")
        assert loose == []


def test_should_a_script_get_in_all_the_same_it_does_not_run(run, comparison, visit, tmp_path):
    """Escaping is the first wall; the page's own policy is the second."""
    for path in [comparison, *pages(run)[:2]]:
        text = path.read_text()
        slipped = "<script>window.owned = 1</script><img src=http://127.0.0.1:9/x onerror='window.owned = 2'></main>"
        (tmp_path / path.name).write_text(text.replace("</main>", slipped))
        page, seen = visit(tmp_path / path.name)
        assert page.evaluate("() => window.owned") is None
        assert any("Content Security Policy" in said for said in seen.console)


def test_the_pictures_of_the_docs_can_be_made_again(run, tmp_path, visit):
    subprocess.run([sys.executable, SCRIPT, run.path, tmp_path], check=True, capture_output=True, timeout=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["episode.png", "pilot.svg", "report.png"]
    page, seen = visit(tmp_path / "pilot.svg")
    seen.nothing_but((tmp_path / "pilot.svg").as_uri())
    assert "step 2/2" in page.locator("svg").first.text_content().replace("\xa0", " ")


@pytest.mark.parametrize("picture", sorted((SCRIPT.parent / "images").iterdir()), ids=lambda path: path.name)
def test_a_picture_of_the_docs_is_light_and_asks_nobody(picture):
    assert picture.stat().st_size < 300_000
    if picture.suffix == ".svg":
        assert "url(" not in picture.read_text().replace("url(#", "")
