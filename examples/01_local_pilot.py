"""The local pilot: an agent learns to write RL jobs, on this computer's CPU. About two minutes on two cores.

python examples/01_local_pilot.py [steps]
"""

import sys

import nested_rl as nrl

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 25

run = nrl.Experiment().run(steps=steps, out="runs/example-pilot")

for row in run.metrics:
    print(
        f"step {row['step']:>2}  reward {row['reward/mean']:.3f}  valid at first try {row['validation/first_try']:.2f}"
    )
print(run.report)
