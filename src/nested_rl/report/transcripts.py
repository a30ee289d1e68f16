"""`transcripts/GGGGG-M.html`: an episode on a page of its own, as readable as the report and as inert.

Pages are written when somebody asks for them: a run may have thousands of episodes, and each is in its files anyway. Pages that are there
link to each other, so that a reader goes from one to the next. Those of an evaluation are in a folder with its name.
"""

from __future__ import annotations

import bisect
import contextlib
import fnmatch
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from nested_rl.errors import RunDirError, SettingsError, UnknownName
from nested_rl.report import close_ups, talk
from nested_rl.report.markup import templates
from nested_rl.report.showcase import show
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import JSON, Episode

FOLDER = "transcripts"
ALL = "all"
_NAME = re.compile(r"(?:([^/.][^/]*)/)?(\d+)-(\d+)")
_Place = tuple[int, int]


def write_transcripts(run: RunDir, episodes: Iterable[Episode | str]) -> list[Path]:
    """Write the pages of some episodes and return their paths, in order.

    Episodes of the run are given as they are or by name ("00012-3"), those of an evaluation by name ("NAME/00000-0"). Pages beside a new
    one, and those of its group, are written again: they link to it now. One that is not finished raises SettingsError.
    """
    asked: dict[str, set[_Place]] = {}
    for episode in episodes:
        evaluation, place = _parsed(episode) if isinstance(episode, str) else ("", (episode.group, episode.member))
        asked.setdefault(evaluation, set()).add(place)
    return [path for evaluation in sorted(asked) for path in Shelf(run, evaluation).write(asked[evaluation])]


def select(run: RunDir, words: Sequence[str]) -> list[str]:
    """The names of the episodes that a user asks for, in order.

    "12" is a group, "12-3" one member, "all" every finished episode; after the name of an evaluation and a slash they are its own,
    and "triage-*/all" means every evaluation with such a name. Raises SettingsError for a word that means no finished episode.
    """
    found: set[tuple[str, _Place]] = set()
    for word in words:
        asked, _, rest = word.rpartition("/")
        known = [
            (evaluation, place)
            for evaluation in _evaluations(run, asked)
            for place in Shelf(run, evaluation).finished()
        ]
        chosen = [(evaluation, place) for evaluation, place in known if rest == ALL or _matches(rest, place)]
        if not chosen:
            last = f"the last one is {name(known[-1][1])}" if known else "there is none"
            raise SettingsError(
                f"{run.path} has no finished episode {word!r} ({last}); say GROUP, GROUP-MEMBER or {ALL}"
                + _of_evaluations(run)
            )
        found |= set(chosen)
    return [f"{evaluation}/{name(place)}".lstrip("/") for evaluation, place in sorted(found)]


def name(place: tuple[int, int]) -> str:
    """How an episode is called everywhere.

    >>> name((12, 3))
    '00012-3'
    """
    return f"{place[0]:05d}-{place[1]}"


def page(run: RunDir, place: tuple[int, int]) -> Path:
    """Where the page of an episode is, or would be."""
    return Shelf(run).page(place)


def render(run: RunDir, episode: Episode) -> str:
    """The page of an episode of the run as text, with links to no other page."""
    return Shelf(run).render(episode, [(episode.group, episode.member)])


# ---------------------------------------------------------------- one page


@frozen(kw_only=True)
class Mate:
    """A member of the same group. `page` is empty when it has none; `reward` is None when it is masked."""

    name: str
    reward: float | None
    page: str
    here: bool


class Shelf:
    """Episodes that stand side by side, and their pages: those of a run, or of one of its evaluations."""

    def __init__(self, run: RunDir, evaluation: str = "") -> None:
        self._run = run
        self._evaluation = evaluation
        self._under = f"evals/{evaluation}/episodes" if evaluation else "episodes"
        self._folder = run.path / FOLDER / evaluation
        self._rewards = functools.lru_cache(maxsize=4)(self._read_rewards)

    def page(self, place: _Place) -> Path:
        """Where the page of one of them is, or would be."""
        return self._folder / f"{name(place)}.html"

    def finished(self) -> list[_Place]:
        """Those that are whole."""
        return sorted(_places(path.parent.name for path in (self._run.path / self._under).glob("*-*/reward.json")))

    def write(self, asked: set[_Place]) -> list[Path]:
        """Write the pages of these; those that link to a new one again."""
        there = set(_places(path.stem for path in self._folder.glob("*-*.html")))
        order, new = sorted(there | asked), asked - there
        groups = {group for group, _ in new}
        damaged: set[_Place] = set()
        for number, place in enumerate(order):
            beside = order[max(0, number - 1) : number + 2]
            if place not in asked and place[0] not in groups and new.isdisjoint(beside):
                continue
            try:
                episode = self._run.read_episode(*place, under=self._under)
            except RunDirError:
                if len(asked) == 1 and place in asked:
                    raise
                damaged.add(place)  # of several, the others get theirs
                continue
            if episode is not None:
                write_atomic(self.page(place), self.render(episode, order).encode("utf-8", "replace"))
            elif place in asked:
                raise SettingsError(f"{self._run.path} has no finished episode {name(place)}")
        return [self.page(place) for place in sorted(asked - damaged)]

    def render(self, episode: Episode, order: Sequence[_Place]) -> str:
        """One page. `order` has all that have one, this one among them."""
        here = (episode.group, episode.member)
        at = bisect.bisect_left(order, here)
        rewards = self._rewards(episode.group)
        known = [reward for reward in rewards.values() if reward is not None]
        root = "../../" if self._evaluation else "../"
        return (
            templates()
            .get_template("transcript.html.j2")
            .render(
                e=episode,
                name=name(here),
                run_name=self._run.path.resolve().name,
                evaluation=self._evaluation,
                root=root,
                folder=f"{root}{self._under}/{name(here)}",
                before=name(order[at - 1]) if at else "",
                after=name(order[at + 1]) if at + 1 < len(order) else "",
                mates=list(self._mates(here, rewards, order)),
                group_mean=sum(known) / len(known) if len(known) > 1 else None,
                step=self._steps.get(episode.group),
                task=talk.untold(episode),
                entries=talk.entries(episode.transcript),
                end=talk.ENDS.get(episode.transcript.end, episode.transcript.end),
                attempts=show(self._run, episode, title="", why="", under=self._under).attempts,
                jobs=close_ups.jobs(episode),
                baselines=close_ups.baselines(episode),
                items=close_ups.items(episode),
                parts=close_ups.parts(episode, self._weights),
            )
        )

    def _mates(self, here: _Place, rewards: Mapping[_Place, float | None], order: Sequence[_Place]) -> Iterator[Mate]:
        for place, reward in rewards.items():
            link = f"{name(place)}.html" if place in order else ""
            yield Mate(name=name(place), reward=reward, page=link, here=place == here)

    @functools.cached_property
    def _steps(self) -> Mapping[int, int]:
        """Group → the step (from 1) that trained on it."""
        rows = self._run.events("step.done") if not self._evaluation else ()
        return {int(group): int(row["step"]) + 1 for row in rows for group in row.get("groups", ())}

    @functools.cached_property
    def _weights(self) -> Mapping[str, float]:
        """What the default reward multiplies its parts by; empty with another one."""
        return close_ups.weights(self._run.spec)

    def _read_rewards(self, group: int) -> Mapping[_Place, float | None]:
        """Rewards of a group's finished members; None for masked ones."""
        found: dict[_Place, float | None] = {}
        for path in sorted((self._run.path / self._under).glob(f"{group:05d}-*/reward.json")):
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError):  # a damaged one has no place among them
                row: JSON = json.loads(path.read_bytes())
                found[(group, int(row["member"]))] = None if row["masked"] else float(row["reward"])
        return found


# ---------------------------------------------------------------- names


def _places(names: Iterable[str]) -> Iterator[_Place]:
    """Of the names of folders or pages; one of another's making is passed over."""
    for found in map(_NAME.fullmatch, names):
        if found is not None:
            yield int(found[2]), int(found[3])


def _parsed(text: str) -> tuple[str, _Place]:
    found = _NAME.fullmatch(text)
    if found is None:
        raise SettingsError(f"{text!r} is not the name of an episode; it is called GROUP-MEMBER, such as 00012-3")
    return found[1] or "", (int(found[2]), int(found[3]))


def _matches(word: str, place: _Place) -> bool:
    if _NAME.fullmatch(word):
        return _parsed(word)[1] == place
    return word.isdecimal() and int(word) == place[0]


def _evaluations(run: RunDir, asked: str) -> list[str]:
    """Those that a word names or, with * and ?, describes; [""], the run itself, without one."""
    if not asked:
        return [""]
    names = run.evals()
    found = [asked] if asked in names else fnmatch.filter(names, asked)
    if not found:
        raise UnknownName("evaluation", asked, names)
    return found


def _of_evaluations(run: RunDir) -> str:
    names = sorted(run.evals())
    return f", or the same after the name of an evaluation and a slash: {', '.join(names)}" if names else ""
