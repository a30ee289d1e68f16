"""The parts of the pool alone: names, choice, cool-downs, places, breakers, and what pods cost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_play import A40, A5000, ANY, BIG, R4090, START

from nested_rl.clock import VirtualClock
from nested_rl.compute.pool_breaker import AUTH, FULL, IN_A_ROW, Breaker
from nested_rl.compute.pool_costs import by_job, by_kind, costs
from nested_rl.compute.pool_market import LONGEST_REST_S, Market
from nested_rl.compute.pool_name import LONGEST, PodName
from nested_rl.compute.pool_places import AVOIDED_S, BadPlace, Places
from nested_rl.compute.pool_roster import NEXT, State
from nested_rl.compute.provider import Pod, Price
from nested_rl.errors import SettingsError

LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@given(
    st.text(LETTERS, min_size=8, max_size=8),
    st.integers(0, 9999),
    st.text(LETTERS, min_size=6, max_size=6),
    st.integers(0, 2**40),
)
def test_names_are_short_and_read_back(run, slot, nonce, deadline):
    name = PodName(run=run, slot=slot, nonce=nonce, deadline=deadline)
    assert PodName.read(str(name)) == name
    assert len(str(name)) <= LONGEST


@pytest.mark.parametrize(
    "text", ["", "web", "nrl-", "nrl-abcd1234-0-aaaaaa", "nrl-ABCD1234-0-aaaaaa-1", "xnrl-abcd1234-0-aaaaaa-1"]
)
def test_other_names_are_not_ours(text):
    assert PodName.read(text) is None


class TestMarket:
    def market(self, *candidates, usd=(0.32, 0.44, 0.34), **more):
        self.clock = VirtualClock(start=START)
        candidates = candidates or (A5000, A40, R4090)
        market = Market(candidates, clock=self.clock, chance=random.Random(0), **more)
        prices = zip(candidates, usd, strict=False)
        market.priced([Price(candidate=one, usd_per_hour=price) for one, price in prices])
        return market

    def later(self, seconds):
        self.clock._time += seconds

    def test_without_prices_nothing_is_chosen(self):
        market = Market([A40], clock=VirtualClock())
        assert market.choose(ANY) is None

    def test_what_is_cheapest_a_job_not_an_hour(self):
        market = self.market(job_s={A5000.gpu: 1000, A40.gpu: 500, R4090.gpu: 1000})
        assert market.choose(ANY) == A40
        assert market.choose(BIG) == A40

    def test_jobs_change_the_choice_and_what_is_untried_gets_its_chance(self):
        market = self.market()
        assert market.choose(ANY) == A5000
        market.made(A5000)
        market.good(A5000)
        market.job_done(A5000, 1800)
        assert market.choose(ANY) == R4090
        market.made(R4090)
        market.good(R4090)
        market.job_done(R4090, 3600)
        assert market.choose(ANY) == A40

    def test_a_kind_that_fails_costs_more(self):
        market = self.market(A5000, R4090, usd=(0.32, 0.34))
        for candidate in (A5000, R4090):
            market.made(candidate)
            market.good(candidate)
        assert market.choose(ANY) == A5000
        market.lost(A5000)
        assert market.choose(ANY) == R4090

    def test_one_request_at_a_time_until_one_succeeds(self):
        market = self.market(usd=(0.2, 0.44, 0.34))
        assert market.choose(ANY, asked={A5000}) is None
        market.made(A5000)
        market.good(A5000)
        assert market.choose(ANY, asked={A5000}) == A5000

    def test_rests_double_to_ten_minutes_with_jitter(self):
        market = self.market(A40, usd=(0.44,))
        rests = []
        for _ in range(8):
            market.rest(A40)
            rests.append(market.records[A40].rests_until_s - self.clock.monotonic())
        assert 22 <= rests[0] <= 38
        assert 45 <= rests[1] <= 75
        assert all(0.75 * LONGEST_REST_S <= rest <= 1.25 * LONGEST_REST_S for rest in rests[5:])
        assert len(set(rests[5:])) == 3
        self.later(rests[-1] + 1)
        assert market.choose(ANY) == A40
        market.good(A40)
        market.rest(A40)
        assert market.records[A40].rests_until_s - self.clock.monotonic() <= 38

    def test_a_pause_is_for_all(self):
        market = self.market()
        market.pause(7)
        assert market.choose(ANY) is None
        self.later(7.1)
        assert market.choose(ANY) is not None


class TestPlaces:
    def pod(self, host, center):
        return Pod(id="p", name="n", status="running", ssh=(host, 22), data_center=center)

    def test_two_failures_in_a_row_and_half_an_hour(self):
        clock = VirtualClock(start=START)
        places = Places(clock=clock)
        places.failed(self.pod("h1", "d1"))
        places.check(self.pod("h1", "d1"))
        places.failed(self.pod("h2", "d1"))
        with pytest.raises(BadPlace, match="data centre d1"):
            places.check(self.pod("h3", "d1"))
        places.check(self.pod("h2", "d2"))
        clock._time += AVOIDED_S
        places.check(self.pod("h3", "d1"))

    def test_a_good_one_clears_it(self):
        places = Places(clock=VirtualClock())
        places.failed(self.pod("h1", "d1"))
        places.good(self.pod("h2", "d1"))
        places.failed(self.pod("h3", "d1"))
        places.check(self.pod("h4", "d1"))


class TestBreaker:
    def test_all_rejected(self):
        breaker = Breaker()
        breaker.rejected(A40, "bad image", among=[A40, A5000])
        breaker.taken()
        breaker.rejected(A5000, "bad image", among=[A40, A5000])
        assert breaker.error is None
        breaker.rejected(A40, "bad image", among=[A40, A5000])
        assert "bad image" in str(breaker.error)

    def test_one_kind_that_is_asked_again_and_again(self):
        breaker = Breaker()
        for _ in range(IN_A_ROW):
            assert breaker.error is None
            breaker.rejected(A40, "bad disk", among=[A40, A5000])
        assert isinstance(breaker.error, SettingsError)

    def test_a_pod_that_comes_up_begins_the_count_anew(self):
        breaker = Breaker()
        for _ in range(2):
            for _ in range(IN_A_ROW - 1):
                breaker.failed("broken")
            for _ in range(FULL - 1):
                breaker.no_room(A40)
            assert breaker.error is None
            breaker.good()
        for _ in range(IN_A_ROW):
            assert breaker.error is None
            breaker.failed("broken")
        assert "6 pods in a row" in str(breaker.error)

    def test_a_request_that_is_accepted_begins_the_count_anew(self):
        breaker = Breaker()
        for _ in range(2):
            for _ in range(IN_A_ROW - 1):
                breaker.rejected(A40, "bad disk", among=[A40, A5000])
            assert breaker.error is None
            breaker.taken()

    def test_logins_and_the_first_reason(self):
        breaker = Breaker()
        breaker.no_login("refused")
        breaker.good()
        for _ in range(AUTH):
            assert breaker.error is None
            breaker.no_login("refused")
        first = breaker.error
        breaker.open(SettingsError("another"))
        assert breaker.error is first


@st.composite
def journals(draw):
    """Journals of a few pods, each on any path of states."""
    lines, now = [], START
    for number in range(draw(st.integers(1, 3))):
        state, made = State.INTENT, False
        name = f"pod{number}"
        lines.append({"t": now, "pod": name, "state": "intent", "candidate": {}, "usd_per_hour": 0.3})
        for _ in range(draw(st.integers(0, 12))):
            now += draw(st.floats(0, 5000))
            if made and state is not State.GONE and draw(st.booleans()):
                lines.append({"t": now, "pod": name, "state": str(state), "usd_per_hour": draw(st.floats(0.1, 9))})
                continue
            following = NEXT[state] - (set() if made else {State.TERMINATING})
            state = draw(st.sampled_from(sorted(following)))
            line = {"t": now, "pod": name, "state": str(state)}
            if state is State.BOOTING and not made:
                made = True
                line |= {"id": name, "usd_per_hour": draw(st.floats(0.1, 9))}
            if state is State.BUSY:
                line["job"] = draw(st.sampled_from(["a", "b"]))
            lines.append(line)
            if state is State.GONE and not made:
                break
    return lines, now + draw(st.floats(0, 100))


@given(journals())
def test_rows_always_add_up_to_the_time_of_the_pods(told):
    lines, now = told
    rows = costs(lines, now=now)
    for name in {line["pod"] for line in lines}:
        mine = [line for line in lines if line["pod"] == name]
        created = next((line["t"] for line in mine if line["state"] == "creating"), None)
        made = any("id" in line for line in mine)
        end = mine[-1]["t"] if mine[-1]["state"] == "gone" else now
        paid = end - created if created is not None and (made or mine[-1]["state"] != "gone") else 0.0
        assert sum(row.seconds for row in rows if row.pod == name) == pytest.approx(paid, abs=1e-3)
    assert all(row.seconds > 0 and row.usd >= 0 for row in rows)
    assert sum(by_kind(rows).values()) == pytest.approx(sum(row.usd for row in rows))
    assert sum(by_job(rows).values()) <= sum(row.usd for row in rows) + 1e-9


def _lines(*told):
    return [{"t": START + t, "pod": "p", "state": state, **more} for t, state, more in told]


LIFE = _lines(
    (0, "intent", {"usd_per_hour": 1.0}),
    (1, "creating", {}),
    (3, "booting", {"id": "x", "usd_per_hour": 3600.0}),
    (10, "preflight", {}),
    (15, "ready", {}),
    (17, "busy", {"job": "a"}),
    (77, "ready", {}),
    (80, "busy", {"job": "b"}),
    (100, "busy", {"usd_per_hour": 7200.0}),
)


def test_each_second_has_its_purpose_job_and_price():
    rows = costs([*LIFE, *_lines((110, "draining", {}), (111, "terminating", {}), (113, "gone", {}))], now=START + 999)
    assert by_kind(rows) == {"provision": 9, "preflight": 5, "idle": 5, "busy": 60 + 20 + 20, "drain": 6, "lost": 0}
    assert by_job(rows) == {"a": 60, "b": 40}


def test_a_job_whose_pod_was_lost_was_lost_time_and_keeps_its_name():
    rows = costs([*LIFE, *_lines((110, "lost", {}), (112, "gone", {}))], now=START + 999)
    assert by_kind(rows)["lost"] == 20 + 20 + 4
    assert by_kind(rows)["busy"] == 60
    assert by_job(rows) == {"a": 60, "b": 40}


def test_what_was_never_made_costs_nothing():
    lines = _lines((0, "intent", {"usd_per_hour": 1.0}), (1, "creating", {}), (61, "gone", {}))
    assert costs(lines, now=START + 999) == []
    late = [*lines, *_lines((100, "terminating", {"id": "x", "usd_per_hour": 3600.0}), (101, "gone", {}))]
    assert by_kind(costs(late, now=START + 999)) == {
        "provision": 60, "preflight": 0, "idle": 0, "busy": 0, "drain": 1, "lost": 39,
    }  # fmt: skip
