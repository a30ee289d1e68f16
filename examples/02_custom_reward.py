"""Your own reward: a function of one value. Here: uplift, less a little for the compute that the job used.

    python examples/02_custom_reward.py [steps]

Return a float, or a mapping of named parts; parts are added up and get a curve each. Sync and async both work.
"""

import sys

import nested_rl as nrl


def thrifty(outcome: nrl.Outcome) -> dict[str, float]:
    """Uplift on the hidden evaluation, less a tenth of the share of its allowance that the job used."""
    used = outcome.cost / outcome.cost_limit if outcome.cost_limit else 0.0
    return {"valid": 0.2 * outcome.valid, "uplift": outcome.uplift, "work": -0.1 * used}


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10

run = nrl.Experiment(reward=thrifty).run(steps=steps, out="runs/example-thrifty")
for row in run.metrics:
    print({key: round(value, 3) for key, value in row.items() if key.startswith("reward/")})
