"""Does what was learnt carry over? The trained and the untrained agent on a family that training never saw.

    python examples/05_heldout_evaluation.py [steps] [episodes a side]

Both sides get the same tasks and seeds; the difference is taken pair by pair.
"""

import sys

import nested_rl as nrl

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 25
n = int(sys.argv[2]) if len(sys.argv) > 2 else 48

exp = nrl.Experiment()
run = exp.run(steps=steps, out="runs/example-pilot")

triage = nrl.tasks.load("triage")
trained = exp.evaluate(triage, policy=f"{run.path}@best", n=n)
untrained = exp.evaluate(triage, policy=f"{run.path}@initial", n=n)

print(trained)
print(untrained)
print("difference:", trained.compare(untrained))
