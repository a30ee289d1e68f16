"""`transcripts/GGGGG-M.html`: an episode on a page of its own, as readable as the report and as inert.

Pages are written when somebody asks for them: a run may have thousands of episodes, and each is in its files anyway. Pages that are there
link to each other, so that a reader goes from one to the next.
"""

from __future__ import annotations

import bisect
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from nested_rl.errors import SettingsError
from nested_rl.report import close_ups, talk
from nested_rl.report.markup import templates
from nested_rl.report.showcase import show
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import JSON, Episode

FOLDER = "transcripts"
ALL = "all"
_NAME = re.compile(r"(\d+)-(\d+)")
_Place = tuple[int, int]


def write_transcripts(run: RunDir, episodes: Iterable[Episode | str]) -> list[Path]:
    """Write the pages of some episodes, given as they are or by name ("00012-3"); their paths, in the run's order.

    Pages beside a new one are written again, since it is now their neighbour. An episode that is not finished, or that is of
    another run, raises SettingsError.
    """
    asked = {_place(episode) for episode in episodes}
    there = {_parsed(path.stem) for path in (run.path / FOLDER).glob("*-*.html")}
    order = sorted(there | asked)
    facts = _Facts(run)
    for number, place in enumerate(order):
        beside = order[max(0, number - 1) : number + 2]
        if place in asked or any(other in asked - there for other in beside):
            _write(run, place, order, facts)
    return [page(run, place) for place in order if place in asked]


def select(run: RunDir, words: Sequence[str]) -> list[str]:
    """The names of the episodes that a user asks for: "12" is a whole group, "12-3" one member, "all" every finished episode.

    Raises SettingsError for a word that means no finished episode.
    """
    known = _finished(run)
    found: set[_Place] = set()
    for word in words:
        chosen = [place for place in known if word == ALL or _matches(word, place)]
        if not chosen:
            last = f"the last one is {name(known[-1])}" if known else "there is none yet"
            raise SettingsError(
                f"{run.path} has no finished episode {word!r} ({last}); say GROUP, GROUP-MEMBER or {ALL}"
            )
        found.update(chosen)
    return [name(place) for place in sorted(found)]


def name(place: _Place) -> str:
    """How an episode is called everywhere.

    >>> name((12, 3))
    '00012-3'
    """
    return f"{place[0]:05d}-{place[1]}"


def page(run: RunDir, place: _Place) -> Path:
    """Where the page of an episode is, or would be."""
    return run.path / FOLDER / f"{name(place)}.html"


def render(run: RunDir, episode: Episode, *, order: Sequence[tuple[int, int]] = ()) -> str:
    """The page as text. `order` has the episodes (group, member) that have a page, this one among them."""
    return _render(run, episode, sorted({*order, (episode.group, episode.member)}), _Facts(run))


# ---------------------------------------------------------------- one page


@frozen(kw_only=True)
class Mate:
    """A member of the same group. `page` is empty when it has none; `reward` is None when it is masked."""

    name: str
    reward: float | None
    page: str
    here: bool


class _Facts:
    """What the pages of one run share, each read once."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.rewards = functools.lru_cache(maxsize=4)(self._rewards)

    @functools.cached_property
    def steps(self) -> Mapping[int, int]:
        """Group → the step (from 1) that trained on it."""
        rows = self._run.events("step.done")
        return {int(group): int(row["step"]) + 1 for row in rows for group in row.get("groups", ())}

    @functools.cached_property
    def weights(self) -> Mapping[str, float]:
        """What the default reward multiplies its parts by; empty with another one."""
        return close_ups.weights(self._run.spec)

    def _rewards(self, group: int) -> Mapping[_Place, float | None]:
        """Rewards of a group's finished members; None for masked ones."""
        found: dict[_Place, float | None] = {}
        for path in sorted((self._run.path / "episodes").glob(f"{group:05d}-*/reward.json")):
            row: JSON = json.loads(path.read_bytes())
            found[(group, int(row["member"]))] = None if row["masked"] else float(row["reward"])
        return found


def _write(run: RunDir, place: _Place, order: Sequence[_Place], facts: _Facts) -> None:
    episode = run.read_episode(*place)
    if episode is None:
        page(run, place).unlink(missing_ok=True)  # of an episode that is being made again
        raise SettingsError(f"{run.path} has no finished episode {name(place)}")
    write_atomic(page(run, place), _render(run, episode, order, facts).encode("utf-8", "replace"))


def _render(run: RunDir, episode: Episode, order: Sequence[_Place], facts: _Facts) -> str:
    here = (episode.group, episode.member)
    at = bisect.bisect_left(order, here)
    rewards = facts.rewards(episode.group)
    known = [reward for reward in rewards.values() if reward is not None]
    return (
        templates()
        .get_template("transcript.html.j2")
        .render(
            e=episode,
            name=name(here),
            run_name=run.path.resolve().name,
            folder=f"../episodes/{name(here)}",
            before=name(order[at - 1]) if at else "",
            after=name(order[at + 1]) if at + 1 < len(order) else "",
            mates=[
                Mate(
                    name=name(place),
                    reward=reward,
                    page=f"{name(place)}.html" if place in order else "",
                    here=place == here,
                )
                for place, reward in rewards.items()
            ],
            group_mean=sum(known) / len(known) if known else None,
            step=facts.steps.get(episode.group),
            task=talk.untold(episode),
            entries=talk.entries(episode.transcript),
            end=talk.ENDS.get(episode.transcript.end, episode.transcript.end),
            attempts=show(run, episode, title="", why="").attempts,
            jobs=close_ups.jobs(episode),
            baselines=close_ups.baselines(episode),
            items=close_ups.items(episode),
            parts=close_ups.parts(episode, facts.weights),
        )
    )


# ---------------------------------------------------------------- names


def _finished(run: RunDir) -> list[_Place]:
    found = (run.path / "episodes").glob("*-*/reward.json")
    return sorted(_parsed(path.parent.name) for path in found)


def _place(episode: Episode | str) -> _Place:
    return _parsed(episode) if isinstance(episode, str) else (episode.group, episode.member)


def _parsed(text: str) -> _Place:
    found = _NAME.fullmatch(text)
    if found is None:
        raise SettingsError(f"{text!r} is not the name of an episode; it is called GROUP-MEMBER, such as 00012-3")
    return int(found[1]), int(found[2])


def _matches(word: str, place: _Place) -> bool:
    if _NAME.fullmatch(word):
        return _parsed(word) == place
    return word.isdecimal() and int(word) == place[0]
