"""The pictures of README and docs, from a real run.

    .venvs/browser/bin/python docs/make_pictures.py runs/pilot [FOLDER]

`make test-browser` makes that environment; it needs Chromium too. Into FOLDER (docs/images) go pilot.svg, the terminal at the end of the
run as its own journal tells it, and report.png and episode.png, what a browser shows of the pages.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

from nested_rl.report.live import Live
from nested_rl.report.page import summary, write_report
from nested_rl.report.transcripts import name, page, write_transcripts
from nested_rl.rundir import RunDir
from nested_rl.types import Episode

IMAGES = Path(__file__).parent / "images"
COLOURS = 160
"""Of a screenshot; pages have few, and a third of the size is left."""


def terminal(run: RunDir, path: Path, *, width: int = 104) -> None:
    """The live table after the last step, and the paragraph under it."""
    now = [float(next(run.events())["t"])]
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    live = Live(int(run.spec["steps"]), mode="quiet", console=console, monotonic=lambda: now[0])
    for event in run.events():
        now[0] = float(event["t"])
        if event["event"] == "step.done":
            live.on_metrics(event["row"])
        else:
            live.on_event(str(event["event"]), event)
        if event["event"] == "run.finished":
            break
    console.print(Text.assemble(("$ ", "dim"), ("make pilot", "bold")))
    console.print(live.view())
    console.print(Text(summary(run).partition(" Report:")[0]))
    path.write_text(_inert(console.export_svg(title="nested_rl", unique_id="pilot")), encoding="utf-8")


def _inert(svg: str) -> str:
    """Without the fonts that it would ask another server for."""
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: Fira Code, monospace", "font-family: ui-monospace, Menlo, Consolas, monospace", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def pages(run: RunDir) -> Iterator[tuple[str, Path, str, int]]:
    """(name of the picture, page, colour scheme, height)."""
    yield "report", write_report(run), "light", 1180
    shown = max(filter(_mended, run.episodes()), key=lambda episode: episode.reward)
    group = [episode for episode in run.episodes() if episode.group == shown.group]
    write_transcripts(run, group)
    yield "episode", page(run, (shown.group, shown.member)), "dark", 1400
    sys.stdout.write(f"the episode is {name((shown.group, shown.member))}\n")


def _mended(episode: Episode) -> bool:
    """Refused at first, then trained and scored: there is something to see."""
    return len(episode.validations) > 1 and episode.outcome.post is not None


def main() -> None:
    run = RunDir.open(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else IMAGES
    folder.mkdir(exist_ok=True)
    terminal(run, folder / "pilot.svg")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        for picture, path, scheme, height in pages(run):
            window = browser.new_page(
                viewport={"width": 1120, "height": height}, color_scheme=scheme, device_scale_factor=1.5
            )
            window.goto(path.as_uri())
            shot = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
            shot.quantize(COLOURS, dither=Image.Dither.NONE).save(folder / f"{picture}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
