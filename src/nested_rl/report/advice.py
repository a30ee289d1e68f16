"""What to try next, from the records of a run: each piece of advice is a rule, and says what it saw."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nested_rl.report import intervals, stages
from nested_rl.report.digest import Digest
from nested_rl.report.phrases import count, duration, percent

FLAT_GROUPS = 0.25
CUT_OFF = 0.1
OWN_REWARD = 0.02
MASKED = 0.05
LOW_ESS = 0.5
FEW_VALID = 0.5
CHOOSES = 0.8
BUSY = 0.5
"""Shares from which on, or below which, there is something to say."""


def of(digest: Digest) -> list[str]:
    """Sentences, the most pressing first. Other seeds come last, always: one run is one draw."""
    mend = f"What ended the run, first: then the command that started it goes on after step {digest.done}."
    if digest.failure and not digest.rows:
        return ["What ended the run: then the command that started it goes on, and what is whole is not done again."]
    if not digest.rows:
        return ["Find out why no step was done: `nested-rl watch RUN --once` and the last lines of journal.jsonl."]
    found = [line for rule in RULES for line in rule(digest)]
    return [
        *([mend] if digest.failure else []),
        *found,
        "The same with other seeds (`nrl.sweep`): this is one run, and its intervals say nothing of another seed.",
    ]


def _updates(digest: Digest) -> Iterator[str]:
    values = digest.column("ess")
    known = [(v, step) for step, v in enumerate(values, 1) if math.isfinite(v)]
    if known and min(known)[0] < LOW_ESS:
        lowest, step = min(known)
        yield (
            f"Smaller updates (a lower learning rate, a tighter trust region), or fewer steps off-policy: in step {step} the effective "
            f"sample share was {lowest:.2f}."
        )


def _validity(digest: Digest) -> Iterator[str]:
    valid = digest.end("validation/valid").value
    if not valid < FEW_VALID:
        return
    agents = [f for f in digest.failures.values() if f.fault == "agent"]
    common = max(agents, key=lambda f: f.count, default=None)
    most = (
        f"; the most frequent trouble was `{common.kind.replace('`', '')}`, in {count(common.count, 'episode')}"
        if common
        else ""
    )
    yield f"Validity first: {percent(valid)} of the last episodes had an accepted job{most}."


def _signal(digest: Digest) -> Iterator[str]:
    groups = digest.done * int(digest.spec.get("groups_per_step", 0))
    flat = round(digest.total("groups/zero_advantage"))
    if groups and flat >= FLAT_GROUPS * groups:
        last = sum(row.get("groups/zero_advantage", 0.0) for row in digest.rows[-5:])
        yield (
            f"A reward that tells more apart, larger groups or other difficulties: in {flat} of {count(groups, 'group')} every member earned the same "
            f"({last:.0f} of them in the last {count(min(5, digest.done), 'step')})."
        )


def _length(digest: Digest) -> Iterator[str]:
    found = stages.of(digest)
    if len(found) < 3:
        yield f"More steps: {digest.done} {'is' if digest.done == 1 else 'are'} too few to see a trend."
        return
    change = stages.change(digest, found[1], found[2], stages.MEASURES[0])
    if change.low > 0:
        yield f"More steps: the reward of the last third was still above that of the middle, by {change.signed()}."
    elif change.high < 0:
        yield f"Fewer steps, or an earlier version: the reward of the last third was below that of the middle, by {change.signed()}."
    else:
        yield f"Something else than more steps: the last third was not clearly above the middle ({change.signed()})."


def _families(digest: Digest) -> Iterator[str]:
    ends = {family: intervals.of(digest.rewards(digest.last_steps, family)) for family in digest.families}
    known = {family: end for family, end in ends.items() if end.n > 1}
    if len(known) < 2:
        return
    low, high = min(known, key=lambda f: known[f].value), max(known, key=lambda f: known[f].value)
    difference = intervals.apart(digest.rewards(digest.last_steps, high), digest.rewards(digest.last_steps, low))
    if difference.low > 0:
        yield f"A look at the jobs of `{low}`: at the end its reward is {difference.value:.2f} below that of `{high}`."


def _bases(digest: Digest) -> Iterator[str]:
    share = digest.end("base/share_strongest").value
    if share < CHOOSES and digest.end("validation/valid").value > 0:
        asked = digest.end("tools/baselines").value
        yield (
            f"The choice of base: {percent(share)} of the last valid jobs took the strongest untrained one, and {percent(asked)} of the "
            "episodes asked for the baselines."
        )


def _advanced(digest: Digest) -> Iterator[str]:
    share = digest.end("job/share_advanced").value
    if share == 0 and digest.end("validation/valid").value > 0:
        yield "If the optional table matters, a wording or a reward that leads to it: no job of the last steps set a key of it."


def _rewards(digest: Digest) -> Iterator[str]:
    if digest.scored and digest.own_above >= OWN_REWARD * digest.scored:
        yield (
            f"A look at the rewards that jobs give themselves: in {digest.own_above:,} of {digest.scored:,} scored jobs it ended far above the "
            "hidden score."
        )
    if digest.answers and digest.cut_off > CUT_OFF * digest.answers:
        yield f"Longer answers, or jobs that teach shorter ones: {percent(digest.cut_off / digest.answers)} were cut off at their limit."


def _machines(digest: Digest) -> Iterator[str]:
    median = {phase.name: phase.median_s for phase in digest.timeline.phases}
    work = median.get("train", 0.0) + median.get("score", 0.0)
    waits = median.get("queue", 0.0)
    shares = [digest.timeline.busy_share(name) for name in digest.timeline.machines]
    busy = not shares or sum(shares) / len(shares) >= BUSY
    if busy and work and waits > 2 * work:
        yield f"More machines, where there are any: half of the jobs waited {duration(waits)} or longer in the queue, for {work:.1f} s of work."
    if digest.masked > MASKED * digest.episodes:
        yield f"Steadier machines: {digest.masked:,} of {count(digest.episodes, 'episode')} masked."


def _held_out(digest: Digest) -> Iterator[str]:
    if not digest.held_out:
        yield "An evaluation on a family that was held out (`nested-rl evaluate`): the records have no pair of a trained and the untrained version."


RULES = (_updates, _validity, _signal, _length, _families, _bases, _advanced, _rewards, _machines, _held_out)
