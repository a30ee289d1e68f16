"""Train the agent on a family of your own: a folder with task.toml, prompt.md and family.py.

    python examples/03_custom_family/run.py [steps]

A family is known by its folder's name. The agent writes that name in its jobs, and copies it token by token: the nano
agent has one token for each of the words listed in `nested_rl.pretrain.pieces.NAMES`, so a name of one or two of them is
easy for it, and any other is not.
"""

import random
import sys
from pathlib import Path

import nested_rl as nrl

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 15

(family,) = nrl.tasks.load(Path(__file__).parent / "paper_chain")
print("for training:", ", ".join(f"{item.prompt} {item.answer}" for item in family.examples(random.Random(0), 3)))

run = nrl.Experiment(tasks=[family]).run(steps=steps, out="runs/example-family")

first = next(run.episodes).outcome
print("untrained:", ", ".join(f"{base} {score.value:.2f}" for base, score in sorted(first.baselines.items())))
best = max((e.outcome for e in run.episodes if e.outcome.post), key=lambda outcome: outcome.post.value)
print(f"best job: {best.base} from {best.baselines[best.base].value:.2f} to {best.post.value:.2f} on hidden questions")
