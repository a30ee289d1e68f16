"""Resume: run the same script again. What was paid for is kept, no update is done twice.

    python examples/06_resume.py [steps]

Press Ctrl-C (or kill -9 the process) at any moment and start it again. The run directory is the record; a different
experiment in the same directory is refused, and the fields that differ are named. More steps may be asked for.
"""

import sys

import nested_rl as nrl

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 6

exp = nrl.Experiment()
half = exp.run(steps=max(1, steps // 2), out="runs/example-resume")
print(repr(half))

whole = nrl.Experiment().run(steps=steps, out="runs/example-resume")
print(repr(whole))

try:
    nrl.Experiment().run(steps=steps, seed=1, out="runs/example-resume")
except nrl.errors.RunMismatch as error:
    print("refused:", error)
