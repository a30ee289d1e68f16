"""Pilots under random kill -9 of the controller and of the programs on its machines: each is started again until it is done.

    python tests/chaos/chaos.py --runs 200 --out benchmarks/results/chaos.json

Then it is counted: results lost, updates made twice, processes and folders left behind, ledgers that do not add up, and runs
that ended anywhere else than the one that nobody killed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import random
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from attrs import Factory, asdict, define
from killing import descendants, on_machines, outlived, speaking_of

from nested_rl.rundir import RunDir

PILOT = Path(__file__).with_name("pilot.py")
HANG_S = 300.0
"""A life that takes longer has hung."""
WHOLE = 200
ERRORS = 3
"""So many lives may end with an error of their own (a sandbox that something else has killed, say) and are started again."""


@define
class Story:
    """What was done to one run, and what came of it. Lists name what is wrong; all should be empty."""

    seed: int
    seconds: float = 0.0
    controller_kills: int = 0
    machine_kills: int = 0
    results: int = 0
    usd: float = 0.0
    cut_off: int = 0
    delivered_again: int = 0
    struck: list[str] = Factory(list)
    """The last event in the journal when the controller was killed."""
    errors: list[str] = Factory(list)
    lost_results: list[str] = Factory(list)
    paid_again: list[str] = Factory(list)
    updates_twice: list[str] = Factory(list)
    leaked_processes: list[str] = Factory(list)
    leaked_folders: list[str] = Factory(list)
    ledger: list[str] = Factory(list)
    differs: list[str] = Factory(list)
    failed: list[str] = Factory(list)


WRONG = (
    "lost_results",
    "paid_again",
    "updates_twice",
    "leaked_processes",
    "leaked_folders",
    "ledger",
    "differs",
    "failed",
)


@define
class Place:
    """The run directory and the folder for temporary files of one run. The same salt draws the same hidden items."""

    root: Path
    salt: str

    @property
    def out(self) -> Path:
        return self.root / "run"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    def start(self) -> subprocess.Popen[bytes]:
        self.tmp.mkdir(parents=True, exist_ok=True)
        if not self.out.exists():
            (self.out / "secret").mkdir(parents=True, mode=0o700)
            (self.out / "secret" / "salt").write_text(self.salt)
        with (self.root / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, str(PILOT), str(self.out)],
                start_new_session=True,
                stdout=said,
                stderr=said,
                env={**os.environ, "TMPDIR": str(self.tmp)},
            )

    def last_words(self) -> str:
        return (self.root / "said").read_text()[-2000:]

    def results(self) -> dict[str, str]:
        """What the queue holds, by job."""
        if not (self.out / "queue.sqlite").exists():
            return {}
        with closing(sqlite3.connect(self.out / "queue.sqlite")) as db:
            try:
                return dict(db.execute("SELECT key, result FROM jobs WHERE result IS NOT NULL"))
            except sqlite3.OperationalError:  # killed before the table was made
                return {}


def calm(root: Path, *, at_once: int) -> tuple[Place, float]:
    """The run that nobody kills, and how long it takes; as many of them as will run together, which must all agree."""
    salt, start_s = secrets.token_hex(16), time.monotonic()
    places = [Place(root / str(number), salt) for number in range(at_once)]
    for place, process in [(place, place.start()) for place in places]:
        if process.wait(HANG_S) != 0:
            raise RuntimeError(place.last_words())
    usual_s = time.monotonic() - start_s
    stories = [Story(number) for number in range(at_once)]
    for story, place in zip(stories, places, strict=True):
        judge(story, place, places[0])
    if any(getattr(story, name) for story in stories for name in WRONG):
        raise RuntimeError(f"runs that nobody has killed do not agree: {stories}")
    return places[0], usual_s


def run(root: Path, seed: int, undisturbed: Place, usual_s: float) -> Story:
    """One run, killed one to three times, and its programs on machines up to twice."""
    story, rng, place = Story(seed), random.Random(seed), Place(root, undisturbed.salt)
    kills, machine_kills, start_s, paid = rng.randint(1, 3), rng.randint(0, 2), time.monotonic(), dict[str, str]()
    while True:
        process = place.start()
        ends_s = time.monotonic() + (rng.uniform(0.1, 0.8) * usual_s if story.controller_kills < kills else HANG_S)
        code = _live(process, story, rng, ends_s, usual_s, machine_kills)
        if code is None and story.controller_kills < kills:
            _kill_controller(process, story, place)
            found = place.results()
            story.lost_results += [key for key in paid if found.get(key) != paid[key]]
            paid = found
        elif code in (0, None) or len(story.errors) == ERRORS:
            break
        else:  # what it says itself: run the same again
            story.errors.append(place.last_words())
    story.seconds = time.monotonic() - start_s
    if code != 0:
        os.killpg(process.pid, signal.SIGKILL) if code is None else None
        story.failed.append(f"exit code {code}: {place.last_words()}")
        return story
    story.lost_results += [key for key in paid if place.results().get(key) != paid[key]]
    judge(story, place, undisturbed)
    return story


def _live(
    process: subprocess.Popen[bytes], story: Story, rng: random.Random, ends_s: float, usual_s: float, most: int
) -> int | None:
    """Let it run, and kill programs on its machines. Its exit code, or None when its time has come."""
    strikes = sorted(time.monotonic() + rng.uniform(0.2, 0.8) * usual_s for _ in range(most - story.machine_kills))
    for strike_s in [*(s for s in strikes if s < ends_s), ends_s]:
        try:
            return process.wait(max(0.0, strike_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            if strike_s < ends_s and (running := on_machines(process.pid)):
                _kill(rng.choice(running))
                story.machine_kills += 1
    return None


def _kill_controller(process: subprocess.Popen[bytes], story: Story, place: Place) -> None:
    below = descendants(process.pid)
    process.kill()
    process.wait()
    story.controller_kills += 1
    story.leaked_processes += [f"{pid} after kill {story.controller_kills}" for pid in outlived(below, 20.0)]
    rows = list(RunDir(place.out).journal.rows())
    story.struck.append(str(rows[-1]["event"]) if rows else "nothing yet")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def judge(story: Story, place: Place, undisturbed: Place) -> None:
    """Look at everything that a finished run has left."""
    run, other = RunDir.open(place.out), RunDir.open(undisturbed.out)
    steps = Counter(int(event["step"]) for event in run.events("step.done"))
    story.updates_twice += [f"step {step}: {times}" for step, times in steps.items() if times != 1]
    if sorted(steps) != list(range(int(run.spec["steps"]))):
        story.differs.append(f"steps {sorted(steps)}")
    done: set[str] = set()
    for event in run.events("job.started", "job.done"):
        story.paid_again += [event["key"]] if event["key"] in done else []
        done |= {event["key"]} if event["event"] == "job.done" else set()
    story.leaked_processes += [str(pid) for pid in outlived(speaking_of(str(place.tmp)), 20.0)]
    story.leaked_folders += [str(p) for p in place.tmp.rglob("*") if p.name != "desks" and p.parent != place.tmp]
    story.leaked_folders += [str(p) for p in place.out.rglob(".draft-*")]
    if plain(run.metrics()) != plain(other.metrics()):
        story.differs.append("metrics")
    last = f"checkpoints/{len(steps):05d}/model.safetensors"
    if (place.out / last).read_bytes() != (undisturbed.out / last).read_bytes():
        story.differs.append("weights")
    if {e.job_key: e.reward for e in run.episodes()} != {e.job_key: e.reward for e in other.episodes()}:
        story.differs.append("rewards")
    _audit(story, run, place.results())


def _audit(story: Story, run: RunDir, results: dict[str, str]) -> None:
    """Each delivery that was begun has one row, with what the journal and the queue say that it cost; and that is the sum."""
    rows = list(run.costs_log.rows())
    ledger = {str(row["id"]): float(row["usd"]) for row in rows}
    begun = {f"{event['key']}#{event['delivery']}" for event in run.events("job.started")}
    ended = {
        f"{event['key']}#{event['delivery']}": float(event["usd"])
        for event in run.events("job.done", "job.late", "job.lost", "job.released")
    }
    paid = {str(row["id"]).partition("#")[0]: float(row["usd"]) for row in rows if row["kind"] == "job"}
    told = {key: float(json.loads(text)["usd"]) for key, text in results.items()}
    story.results, story.usd = len(results), sum(ledger.values())
    story.cut_off = sum(1 for _ in run.events("job.lost"))
    story.delivered_again = len(begun) - len(results)
    for what, wrong in (
        ("an id is there twice", len(ledger) != len(rows)),
        ("a delivery has no row", not begun <= ledger.keys()),
        ("the journal says otherwise", ended != ledger),
        ("the queue says otherwise", paid != told),
        ("a cost below zero", any(usd < 0 for usd in ledger.values())),
        ("the last step's total is more", run.metrics()[-1]["usd/total"] > story.usd + 1e-9),
    ):
        story.ledger += [what] if wrong else []


def plain(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """What must agree: everything but money, time and how many jobs really ran."""
    return [{k: v for k, v in row.items() if not k.startswith(("usd", "time/", "jobs/"))} for row in rows]


def storm(
    runs: int, *, at_once: int, seed: int = 0, minutes: float = 30.0, keep: Path | None = None
) -> dict[str, object]:
    """`runs` runs, `at_once` at a time, none begun after `minutes`. Figures, and the stories in which something was wrong."""
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, ThreadPoolExecutor(at_once) as pool:
        root = keep or Path(folder)
        undisturbed, usual_s = calm(root / "calm", at_once=at_once)

        def one(number: int) -> Story | None:
            if time.monotonic() - start_s > 60 * minutes:
                return None
            story = run(root / str(number), seed + number, undisturbed, usual_s)
            if not any(getattr(story, name) for name in WRONG):
                shutil.rmtree(root / str(number))
            return story

        stories: list[Story] = []
        for story in pool.map(one, range(runs)):
            stories += [] if story is None else [story]
            print(f"\r{len(stories)}/{runs} {time.monotonic() - start_s:.0f} s", end="", file=sys.stderr, flush=True)
    return figures(stories, seconds=time.monotonic() - start_s, at_once=at_once, usual_s=usual_s)


def figures(stories: Sequence[Story], **about: float) -> dict[str, object]:
    """Sums over runs."""
    sums = ("controller_kills", "machine_kills", "results", "cut_off", "delivered_again")
    return {
        "runs": len(stories),
        **{name: round(value, 1) for name, value in about.items()},
        **{name: sum(getattr(story, name) for story in stories) for name in sums},
        "usd": round(sum(story.usd for story in stories), 4),
        **{name: sum(len(getattr(story, name)) for story in stories) for name in ("errors", *WRONG)},
        "errors_said": [text.strip().splitlines()[-2:] for story in stories for text in story.errors],
        "struck_after": dict(Counter(event for story in stories for event in story.struck).most_common()),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "wrong": [asdict(story) for story in stories if any(getattr(story, name) for name in WRONG)],
    }


def main() -> int:
    """Print the figures; 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=WHOLE)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="no run begins later")
    parser.add_argument("--keep", type=Path, help="a folder in which runs that went wrong are kept")
    parser.add_argument("--out", type=Path, help=f"where to write the figures; only those of {WHOLE} runs are")
    asked = parser.parse_args()
    found = storm(asked.runs, at_once=asked.at_once, seed=asked.seed, minutes=asked.minutes, keep=asked.keep)
    text = json.dumps(found, indent=1)
    print(f"\n{text}")
    if asked.out is not None and found["runs"] >= WHOLE:
        asked.out.write_text(text + "\n", encoding="utf-8")
    short = found["runs"] < asked.runs
    if short:
        print(f"only {found['runs']} of {asked.runs} runs in {asked.minutes:g} minutes", file=sys.stderr)
    return 1 if found["wrong"] or short else 0


if __name__ == "__main__":
    sys.exit(main())
