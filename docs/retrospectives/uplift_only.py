"""A reward that pays for the uplift and for nothing on the way there."""

from nested_rl import Outcome


def uplift_only(outcome: Outcome) -> float:
    """In [0, 1]; 0 for a job that was refused, failed or made nothing better."""
    return outcome.uplift
