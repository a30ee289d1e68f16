"""Jobs on machines that you can log in to; the agent and the hidden evaluation stay here.

    pip install 'nested-rl[ssh]'
    python examples/09_ssh_hosts.py me@gpu1.lab me@gpu2.lab:2222 [--steps 2] [--python /path/to/python]

Each host must be in your ~/.ssh/known_hosts (log in once by hand), and needs Python 3.11 or newer with nested_rl installed for
nano jobs. A host is held by one run at a time; what runs there goes on when the line breaks, and ends by itself when this
computer stays silent for ten minutes.
"""

import argparse

import nested_rl as nrl
from nested_rl.compute import Host, SSHCompute

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("hosts", nargs="+")
asked.add_argument("--steps", type=int, default=2)
asked.add_argument("--python", default="python3", help="the interpreter on the hosts")
asked.add_argument("--key", help="private key to log in with")
asked.add_argument("--known-hosts", help="instead of ~/.ssh/known_hosts")
asked.add_argument("--out", default="runs/example-ssh")
args = asked.parse_args()

hosts = [Host(address=address, key=args.key, python=args.python) for address in args.hosts]
compute = SSHCompute(hosts, known_hosts=args.known_hosts)
run = nrl.Experiment(compute=compute).run(steps=args.steps, groups_per_step=2, group_size=4, eval_every=0, out=args.out)
print("machines:", ", ".join(sorted({e.result.machine for e in run.episodes if e.result})))
