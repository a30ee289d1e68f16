"""The browser tier: pages of real runs in a headless Chromium. Skipped, with the reason, where there is none."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "screenshots"
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
sys.path += [str(ROOT / "tests" / "unit"), str(Path(__file__).parent)]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--disable-gpu"])
        yield browser
        browser.close()


class Seen:
    """What a page did that it should not have: told by the browser, not by the page."""

    def __init__(self, page):
        self.console, self.errors, self.requests, self.dialogs = [], [], [], []
        page.on("console", lambda message: self.console.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def _dialog(self, dialog):
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def nothing_but(self, *urls):
        assert (self.console, self.errors, self.dialogs) == ([], [], [])
        assert [url for url in self.requests if not url.startswith("data:,")] == list(urls)


@pytest.fixture
def visit(chromium):
    """Opens a file in a browser window of its own: (page, what it did). The window is closed with the test."""
    contexts = []

    def visit(path, *, width=1280, height=900, scheme="light"):
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        seen = Seen(page)
        page.goto(path.as_uri())
        return page, seen

    yield visit
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def shoot():
    """Keeps a picture in screenshots/, for eyes."""
    SCREENSHOTS.mkdir(exist_ok=True)

    def shoot(page, name):
        page.set_viewport_size({"width": page.viewport_size["width"], "height": 2400})
        page.screenshot(path=SCREENSHOTS / f"{name}.png")

    return shoot


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A real run, small: two steps and a validation, with the pages of all its episodes."""
    import nested_rl as nrl
    from nested_rl.report.page import write_report
    from nested_rl.report.transcripts import write_transcripts
    from nested_rl.rundir import RunDir

    path = tmp_path_factory.mktemp("runs") / "small"
    nrl.Experiment().run(2, groups_per_step=2, group_size=4, eval_every=0, out=path, quiet=True)
    made = RunDir.open(path)
    write_transcripts(made, made.episodes())
    write_report(made)
    return made


@pytest.fixture(scope="session")
def comparison(run, tmp_path_factory):
    """The page of that run beside a longer one."""
    from made_run import make_run

    from nested_rl.report.compare import compare

    place = tmp_path_factory.mktemp("both")
    return compare(run, make_run(place / "longer", steps=8, groups_per_step=3, group_size=4)).write(place / "both.html")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A run whose agent wants to get out of its pages."""
    from hostile_run import make_hostile_run

    return make_hostile_run(tmp_path_factory.mktemp("runs") / "hostile")
