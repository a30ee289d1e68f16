"""A pod's time in rows, whatever its life was: paid as it goes, nothing changed afterwards, and all of it in the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nested_rl.clock import VirtualClock
from nested_rl.compute.pool_costs import costs, final
from nested_rl.compute.pool_name import PodName
from nested_rl.compute.pool_purse import Purse
from nested_rl.compute.pool_roster import NEXT, Rented, Roster, State
from nested_rl.compute.provider import Candidate
from nested_rl.errors import BudgetExceeded
from nested_rl.meter import Meter
from nested_rl.types import Budget

NAME = PodName(run="abcd1234", slot=0, nonce="x0y1z2", deadline=1_790_000_000)
A40 = Candidate(gpu="NVIDIA A40", gpu_memory_gib=48)


class Lines(list):
    def append(self, row, *, sync=False):
        super().append(row)

    def rows(self):
        return list(self)


@st.composite
def lives(draw):
    """Steps of a pod's life: seconds, then a new state with its fields, or a new price, or another run's taking over."""
    state, steps = State.INTENT, []
    for _ in range(draw(st.integers(1, 25))):
        seconds = draw(st.floats(0, 5000))
        up = state not in (State.INTENT, State.GONE)
        kind = draw(st.sampled_from(["move", "move", "move", "ledger", *(["dearer"] if up else [])]))
        if kind == "move":
            state = draw(st.sampled_from(sorted(NEXT[state])))
            steps.append((seconds, "move", state, draw(st.sampled_from(["", "j1", "j2"]))))
        else:
            steps.append((seconds, kind, draw(st.floats(0.1, 3.0)), draw(st.sampled_from(["mine", "another"]))))
    return steps


def live(roster, clock, pod, step):
    seconds, kind, what, name = step
    clock._time += seconds
    if kind == "ledger":
        roster.ledger = name
    elif kind == "dearer":
        roster.dearer(pod, what)
    else:
        made = {"id": "pod1", "usd_per_hour": pod.usd_per_hour}
        more = {"job": name} if what is State.BUSY else made if what in (State.BOOTING, State.TERMINATING) else {}
        pod.id = more.get("id", pod.id)
        roster.move(pod, what, **more)


@given(lives())
def test_whatever_happens_each_stretch_is_paid_once_and_all_of_them_in_the_end(steps):
    clock = VirtualClock(start=1000.0)
    roster = Roster(Lines(), clock=clock)
    rows = []
    purse = Purse(Meter(Budget(), clock=clock, write=rows.append), now=lambda: roster.now, ahead_s=3600)
    purse.ledger = roster.ledger = "mine"
    pod = roster.intend(NAME, A40, usd_per_hour=0.44)
    before = []
    for step in steps:
        live(roster, clock, pod, step)
        purse.settle(pod)
        now = final(pod.lines)
        assert now[: len(before)] == before  # what was paid stays what it was
        before = now
        mine = sum(row.usd for row in now if row.ledger == "mine")
        assert sum(row["usd"] for row in rows) == pytest.approx(mine)
    whole = costs(pod.lines, now=roster.now)
    if not pod.alive:
        assert final(pod.lines) == whole
    since = next((line["t"] for line in pod.lines if line["state"] == "creating"), roster.now)
    if any("id" in line for line in pod.lines) and State.GONE not in {line["state"] for line in pod.lines}:
        assert sum(row.seconds for row in whole) == pytest.approx(roster.now - since, abs=1e-6)
    again = Roster(Lines(roster._lines), clock=clock)
    assert final(again.pods[str(NAME)].lines) == final(pod.lines)


def rented(roster, *, usd_per_hour=1.0):
    pod = roster.intend(NAME, A40, usd_per_hour=usd_per_hour)
    pod.id = "pod1"
    roster.move(pod, State.CREATING)
    return pod


def made(budget):
    clock = VirtualClock(start=1000.0)
    roster = Roster(Lines(), clock=clock)
    meter = Meter(budget, clock=clock, write=lambda row: None)
    return clock, roster, meter, Purse(meter, now=lambda: roster.now, ahead_s=3600)


def test_what_was_set_aside_for_a_job_goes_with_it_to_its_pod():
    clock, roster, meter, purse = made(Budget(usd=10.0))
    meter.reserve("job", 4.0)
    purse.reserve(str(NAME), 1.0, job="job")
    assert (meter.reserved_for("job"), meter.reserved_for(str(NAME))) == (0.0, 4.0)
    pod = rented(roster)
    roster.move(pod, State.BOOTING, id="pod1", usd_per_hour=1.0)
    roster.move(pod, State.PREFLIGHT)
    roster.move(pod, State.READY)
    roster.move(pod, State.BUSY, job="job")
    purse.settle(pod)
    assert meter.reserved_usd == 4.0  # while it runs
    assert not purse.used_up(pod)
    clock._time += 3600
    roster.move(pod, State.READY)
    purse.settle(pod)
    assert meter.spent_usd == pytest.approx(1.0)
    assert meter.reserved_usd == pytest.approx(0.1)  # five minutes ahead, and one for its end
    meter.reserve("next", 3.0)
    roster.move(pod, State.BUSY, job="next")
    purse.taken(pod, "next")
    purse.settle(pod)
    assert meter.reserved_for("next") == 0.0
    assert meter.reserved_usd == pytest.approx(3.1)
    roster.move(pod, State.TERMINATING)
    roster.move(pod, State.GONE)
    purse.settle(pod)
    assert meter.reserved_usd == 0


def test_a_job_that_has_its_money_is_taken_also_when_none_is_left():
    clock, roster, meter, purse = made(Budget(usd=3.0))
    meter.reserve("job", 1.5)
    purse.reserve(str(NAME), 1.0)
    pod = rented(roster)
    meter.reserve("others", 0.5)
    assert meter.left_usd == 0
    clock._time += 1200
    purse.taken(pod, "job")
    assert meter.reserved_for("job") == 0
    assert meter.left_usd >= 0
    with pytest.raises(BudgetExceeded):
        meter.reserve("more", 1.5)


def test_a_refused_reservation_changes_nothing_and_less_is_always_allowed():
    _, _, meter, _ = made(Budget(usd=2.0))
    meter.reserve("a", 1.0)
    meter.reserve("b", 0.5)
    with pytest.raises(BudgetExceeded):
        meter.reserve("a", 2.0, instead="c")
    with pytest.raises(BudgetExceeded):
        meter.reserve("c", 2.1, instead="a")
    assert (meter.reserved_for("a"), meter.reserved_for("b"), meter.reserved_for("c")) == (1.0, 0.5, 0.0)
    meter.settle("d", 5.0, kind="job")  # dearer than thought
    meter.reserve("a", 0.9)
    meter.reserve("c", 0.4, instead="b")
    assert meter.reserved_usd == pytest.approx(1.3)


def test_the_rate_counts_what_is_there():
    _, _, _, purse = made(Budget(usd_per_hour=1.0))
    purse.reserve("a", 0.6)
    with pytest.raises(BudgetExceeded, match="machines for"):
        purse.reserve("b", 0.6)
    purse.release("a")
    purse.reserve("b", 0.6)


def test_a_pod_that_was_taken_over_has_nothing_set_aside_until_it_is_kept():
    _, roster, meter, purse = made(Budget(usd=5.0))
    pod = Rented(name=NAME, candidate=A40)
    pod.lines = rented(roster).lines
    pod.state, pod.usd_per_hour = State.CREATING, 1.0
    assert purse.used_up(pod)
    purse.keep(pod)
    assert not purse.used_up(pod)
    assert meter.reserved_for(str(NAME)) == pytest.approx(1.0)
