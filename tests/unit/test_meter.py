"""The meter: reserve, settle, refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nested_rl.clock import VirtualClock
from nested_rl.errors import BudgetExceeded, SettingsError
from nested_rl.meter import Meter
from nested_rl.types import Budget


def meter(budget=None, rows=()):
    written = list(rows)
    return Meter(budget or Budget(), clock=VirtualClock(), write=written.append, rows=rows), written


def test_a_budget_is_never_passed_however_many_ask():
    m, _ = meter(Budget(usd=1.0))
    started = 0
    for i in range(16):
        try:
            m.reserve(f"job-{i}", 0.3)
            started += 1
        except BudgetExceeded:
            pass
    assert started == 3
    assert m.reserved_usd <= 1.0


def test_what_was_paid_before_is_not_paid_again():
    m, rows = meter()
    m.settle("a", 1.0, kind="job")
    again, more = meter(rows=rows)
    again.settle("a", 1.0, kind="job")
    assert again.spent_usd == 1.0
    assert len(more) == 1


def test_the_refusal_says_the_figures():
    m, _ = meter(Budget(usd=0.5))
    m.settle("a", 0.4, kind="job")
    with pytest.raises(BudgetExceeded, match=r"\$0\.50.*\$0\.2000.*\$0\.4000 spent"):
        m.reserve("b", 0.2)


async def test_hours_and_rate_are_limits_too():
    clock = VirtualClock()
    m = Meter(Budget(hours=1.0, usd_per_hour=2.0), clock=clock, write=lambda row: None)
    m.settle("a", 3.0, kind="job")
    with pytest.raises(BudgetExceeded, match="an hour"):
        m.reserve("b", 0.0)
    await clock.run(clock.sleep(7200))
    with pytest.raises(BudgetExceeded, match="hours"):
        m.reserve("c", 0.0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 1), st.booleans())))
def test_spent_plus_reserved_never_passes_the_budget(moves):
    m, rows = meter(Budget(usd=2.0))
    held: dict[str, float] = {}
    for key, usd, settle in moves:
        if settle:
            m.settle(key, min(usd, held.pop(key, 0.0)), kind="job")
        elif key not in held:
            try:
                m.reserve(key, usd)
                held[key] = usd
            except BudgetExceeded:
                pass
        assert m.spent_usd + m.reserved_usd <= 2.0 + 1e-6
    assert m.spent_usd == pytest.approx(sum(r["usd"] for r in rows))


@pytest.mark.parametrize(
    "limits",
    [
        {"usd": -1},
        {"usd_per_hour": -0.1},
        {"hours": 0},
        {"hours": math.nan},
        {"usd": math.inf},
        {"usd": "5"},
        {"hours": True},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limits):
    with pytest.raises(SettingsError, match=f"budget: {next(iter(limits))} must be a finite number"):
        Budget(**limits)


def test_a_budget_of_nothing_is_one():
    m, _ = meter(Budget(usd=0, usd_per_hour=0))
    m.reserve("free", 0.0)
    with pytest.raises(BudgetExceeded):
        m.reserve("paid", 0.01)


async def test_what_is_refused_now_may_be_granted_when_others_were_cheaper_and_never_past_the_cap():
    clock = VirtualClock()
    m = Meter(Budget(usd=2.0, usd_per_hour=5.0, hours=3.0), clock=clock, write=lambda row: None)
    m.reserve("a", 1.5)
    with pytest.raises(BudgetExceeded):
        m.reserve("b", 1.0)
    assert m.later(1.0)
    assert not m.later(2.1)
    m.settle("a", 0.9, kind="job")
    assert not m.later(1.2)  # nothing is under way that could be cheaper
    assert m.later(1.0)  # nine dollars an hour so far, which time will mend
    await clock.run(clock.sleep(3600))
    assert not m.later(1.0)
    m.reserve("b", 1.0)
    await clock.run(clock.sleep(3 * 3600))
    assert not m.later(0.1)
