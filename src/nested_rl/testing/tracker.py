"""What every tracker must do."""

from __future__ import annotations

import pytest

from nested_rl.interfaces import Tracker
from nested_rl.testing.values import made_episodes


class TrackerSuite:
    """Override the fixture `tracker`. A tracker is only asked to take everything that a run can give it."""

    @pytest.fixture
    def tracker(self) -> Tracker:
        """A tracker."""
        raise NotImplementedError("override the fixture `tracker`")

    def test_rows_may_differ_and_a_step_may_come_again(self, tracker: Tracker) -> None:
        tracker.metrics(0, {"reward/mean": 0.25, "usd": 0.0, "jobs/run": 3})
        tracker.metrics(1, {"reward/mean": -1e-300, "something/new": 1e300})
        tracker.metrics(1, {})
        tracker.close()

    def test_numbers_that_are_none_do_not_break_it(self, tracker: Tracker) -> None:
        tracker.metrics(0, {"ratio/max": float("inf"), "ess": float("nan")})
        tracker.close()

    def test_it_takes_every_kind_of_episode(self, tracker: Tracker) -> None:
        for step, episode in enumerate(made_episodes()):
            tracker.episode(step, episode)
        tracker.close()

    def test_what_it_is_given_stays_the_callers(self, tracker: Tracker) -> None:
        row = {"reward/mean": 0.25}
        tracker.metrics(0, row)
        assert row == {"reward/mean": 0.25}
        tracker.close()

    def test_closing_twice_is_harmless(self, tracker: Tracker) -> None:
        tracker.close()
        tracker.close()
