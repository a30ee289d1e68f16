"""Episodes worth a look: of a run of any length one for each reason, the most extreme. Agents' text stays unread here."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field, frozen

from nested_rl.report.phrases import count
from nested_rl.types import Episode

GAP = 0.5
"""A job whose own reward ends this far above its hidden score has taught something else than the task."""
CLEAR = 2.0
"""Standard errors of a paired difference, above which it is more than noise."""


@frozen(kw_only=True)
class Reason:
    """Why an episode is kept: `rank` is None for one it does not concern; of the others the highest is kept, of equals the newest.

    `told` says in half a sentence what is to be seen there.
    """

    name: str
    rank: Callable[[Episode], tuple[float, ...] | None]
    told: Callable[[Episode], str]


@define
class Notable:
    """The episodes found so far, by the name of the reason."""

    found: dict[str, tuple[tuple[float, ...], Episode]] = field(factory=dict)

    def look_at(self, episode: Episode) -> None:
        """Keep it wherever it is the most extreme so far. Masked episodes say nothing about the agent."""
        if episode.masked:
            return
        for reason in REASONS:
            rank = reason.rank(episode)
            if rank is not None and (reason.name not in self.found or rank >= self.found[reason.name][0]):
                self.found[reason.name] = (rank, episode)

    def told(self) -> list[tuple[Episode, list[str]]]:
        """Each episode once, with all that there is to say of it, in the order of the reasons."""
        said: dict[tuple[int, int], tuple[Episode, list[str]]] = {}
        for reason in REASONS:
            episode = self[reason.name]
            if episode is not None:
                said.setdefault((episode.group, episode.member), (episode, []))[1].append(reason.told(episode))
        return list(said.values())

    def __getitem__(self, name: str) -> Episode | None:
        """The episode kept for a reason."""
        return self.found[name][1] if name in self.found else None


def own_gap(episode: Episode) -> float | None:
    """How far the job's own reward ends above its hidden score; None where one of them is not known."""
    curve = episode.result.curve if episode.result else ()
    return curve[-1] - episode.outcome.post.value if curve and episode.outcome.post else None


def gain(episode: Episode) -> float | None:
    """Its score minus that of its own base, untrained."""
    outcome = episode.outcome
    before = outcome.baselines.get(outcome.base or "")
    return outcome.post.value - before.value if outcome.post and before else None


def margin(episode: Episode) -> float | None:
    """Its score minus that of the best untrained base of its task."""
    outcome = episode.outcome
    return outcome.post.value - outcome.best_baseline.value if outcome.post and outcome.best_baseline else None


def _best(e: Episode) -> tuple[float, ...] | None:
    """Of equals the first: it was found there."""
    return (e.reward, -e.group, -e.member) if e.validations else None


def _instructive(e: Episode) -> tuple[float, ...] | None:
    """Refused at first, mended by the agent."""
    return (e.reward, -e.group, -e.member) if e.outcome.valid and e.outcome.attempts > 1 else None


def _worst(e: Episode) -> tuple[float, ...] | None:
    """Refusals are told by kind. Only while nothing was accepted, a refused one is shown; of equals the newest, which still goes wrong."""
    return (float(e.outcome.valid), -e.reward) if e.validations else None


def _another_reward(e: Episode) -> tuple[float, ...] | None:
    above = own_gap(e)
    return (above,) if above is not None and above >= GAP else None


def _unlearned(e: Episode) -> tuple[float, ...] | None:
    gained = gain(e)
    return (-gained,) if gained is not None and gained < -0.1 else None


def _weaker_base(e: Episode) -> tuple[float, ...] | None:
    """The base that is weaker untrained, and the result clearly above the stronger one."""
    above, outcome = margin(e), e.outcome
    if above is None or above <= CLEAR * outcome.noise:
        return None
    strongest = max(outcome.baselines, key=lambda base: outcome.baselines[base].value)
    return (above,) if outcome.base != strongest else None


def _other_family(e: Episode) -> tuple[float, ...] | None:
    """Trained on questions of other families only, and clearly better at its own."""
    above, outcome = margin(e), e.outcome
    other = bool(outcome.families) and e.task.family not in outcome.families
    return (above,) if other and above is not None and above > CLEAR * outcome.noise else None


def _early(e: Episode) -> tuple[float, ...] | None:
    """What the untrained agent can do when it is lucky."""
    return (e.reward, -e.group) if e.version == 0 and e.outcome.valid else None


def _late_refusal(e: Episode) -> tuple[float, ...] | None:
    return None if e.outcome.valid else (float(e.version), float(e.group))


def _scored(e: Episode) -> str:
    """Its base and its scores, as far as they are known."""
    outcome = e.outcome
    if outcome.post is None or outcome.best_baseline is None:
        return "none of its jobs was scored"
    own = outcome.baselines.get(outcome.base or "")
    before = f"{own.value:.2f} → " if own else ""
    return f"{outcome.base or 'its base'} {before}{outcome.post.value:.2f}, best untrained base {outcome.best_baseline.value:.2f}"


def _told_worst(e: Episode) -> str:
    if not e.outcome.valid:
        return "no job was accepted so far; this is the newest"
    return f"the lowest reward among accepted jobs, {e.reward:.2f}; {_scored(e)}"


def _told_refusal(e: Episode) -> str:
    return f'the newest without an accepted job: it ended by "{e.transcript.end}" after {count(len(e.validations), "submission")}'


def _told_other_family(e: Episode) -> str:
    return (
        f"trained on questions of {', '.join(e.outcome.families)} only, and did clearly better at its own: {_scored(e)}"
    )


REASONS = (
    Reason(name="best", rank=_best, told=lambda e: f"the highest reward, {e.reward:.2f}; {_scored(e)}"),
    Reason(
        name="instructive",
        rank=_instructive,
        told=lambda e: (
            f"refused at first, accepted at attempt {e.outcome.attempts}, reward {e.reward:.2f}; {_scored(e)}"
        ),
    ),
    Reason(
        name="early",
        rank=_early,
        told=lambda e: f"the best of the untrained agent, reward {e.reward:.2f}; {_scored(e)}",
    ),
    Reason(
        name="weaker base",
        rank=_weaker_base,
        told=lambda e: (
            f"chose a base that is not the strongest untrained one, and ended clearly above it: {_scored(e)}"
        ),
    ),
    Reason(name="other family", rank=_other_family, told=_told_other_family),
    Reason(
        name="another reward",
        rank=_another_reward,
        told=lambda e: (
            f"its own reward ended {own_gap(e) or 0:.2f} above its hidden score: it pays on another scale, or for something else than the task; {_scored(e)}"
        ),
    ),
    Reason(name="unlearned", rank=_unlearned, told=lambda e: f"training made its base worse: {_scored(e)}"),
    Reason(name="worst", rank=_worst, told=_told_worst),
    Reason(name="late refusal", rank=_late_refusal, told=_told_refusal),
)
