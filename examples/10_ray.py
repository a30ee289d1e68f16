"""Jobs on a Ray cluster: every machine is an actor with the GPUs and CPUs that it was given; agent and hidden evaluation stay here.

    pip install 'nested-rl[ray]'
    python examples/10_ray.py [--address auto] [--machines 2] [--gpus 0] [--cpus 1] [--steps 2] [--python /path/to/python]

Run it on a node of the cluster (`ray start --address=HEAD:6379 --num-cpus=0` makes this computer one); without a cluster,
`--address local` starts Ray here for as long as the script runs. The nodes need nested_rl for nano jobs, in Ray's Python or in `--python`.
"""

import argparse

import nested_rl as nrl
from nested_rl.compute import RayCompute

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("--address", default="local")
asked.add_argument("--machines", type=int, default=2)
asked.add_argument("--gpus", type=int, default=0, help="of each machine")
asked.add_argument("--cpus", type=float, default=1, help="of each machine")
asked.add_argument("--steps", type=int, default=2)
asked.add_argument("--python", help="the interpreter on the nodes")
asked.add_argument("--out", default="runs/example-ray")
args = asked.parse_args()

compute = RayCompute(args.machines, gpus=args.gpus, cpus=args.cpus, address=args.address, python=args.python)
run = nrl.Experiment(compute=compute).run(steps=args.steps, groups_per_step=2, group_size=4, eval_every=0, out=args.out)
print("machines:", ", ".join(sorted({e.result.machine for e in run.episodes if e.result})))
