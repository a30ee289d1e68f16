"""Plans: a run simulated by its own scheduling code on a clock that jumps, before anything is spent.

Real are the loop, the workers, the queue in memory, the baselines and the pool of pods with its choices; simulated is only what
policy, harness, jobs, scores and updates *take*, drawn from stated or measured assumptions. Rewards are not simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nested_rl import lazy

if TYPE_CHECKING:
    from nested_rl.plan.asked import assumptions, setting, spends
    from nested_rl.plan.figures import Assumptions, Guess, TokenPrices
    from nested_rl.plan.fleet import Rents
    from nested_rl.plan.making import make
    from nested_rl.plan.simulate import Setting, Simulated
    from nested_rl.plan.value import Plan, Span

_WHERE = {
    "Assumptions": "figures",
    "Guess": "figures",
    "Plan": "value",
    "Rents": "fleet",
    "Setting": "simulate",
    "Simulated": "simulate",
    "Span": "value",
    "TokenPrices": "figures",
    "assumptions": "asked",
    "make": "making",
    "setting": "asked",
    "spends": "asked",
}
__all__ = [
    "Assumptions",
    "Guess",
    "Plan",
    "Rents",
    "Setting",
    "Simulated",
    "Span",
    "TokenPrices",
    "assumptions",
    "make",
    "setting",
    "spends",
]

__getattr__ = lazy.names(__name__, _WHERE)
