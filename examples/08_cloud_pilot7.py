"""The published headline run, "pilot 7": an agent of 35 billion parameters on Tinker, its jobs on at most 16 pods of Runpod.

    pip install 'nested-rl[tinker,ssh]'
    python examples/08_cloud_pilot7.py                # the plan: jobs, hours, dollars, what is missing; spends nothing
    python examples/08_cloud_pilot7.py --run [--yes]  # the plan, a question, and then the run: TINKER_API_KEY, RUNPOD_API_KEY

Published for it: reward from about 0.0 to 0.63 in 54 steps, about $810 for pods and $465 for Tinker. Nobody has run it with this
package yet. `--like runs/x` takes times from a run of your own, `--matrix table.json` those of `nested-rl bench-gpus`.
"""

import argparse

import nested_rl as nrl

asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
asked.add_argument("--steps", type=int, default=54)
asked.add_argument("--run", action="store_true")
asked.add_argument("--yes", action="store_true", help="spend without asking")
asked.add_argument("--like")
asked.add_argument("--matrix")
args = asked.parse_args()

exp = nrl.Experiment(
    tasks=nrl.tasks.load("calc_chain", "multi_hop", "string_pipeline", "ledger", "dispatch"),
    trainer=nrl.trainers.TinkerTrainer("Qwen/Qwen3.6-35B-A3B", rank=8, lr=4e-5),
    inner=nrl.inner.PrimeRLTrainer(bases=["Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"]),
    compute=nrl.compute.RunpodCompute(["2x NVIDIA RTX A5000", "NVIDIA A40"], max_machines=16),
    scorer=nrl.scorers.VLLMScorer(),
    budget=nrl.Budget(usd=1300),
)
schedule = {"groups_per_step": 5, "group_size": 8, "max_steps_off_policy": 2}

plan = exp.plan(args.steps, **schedule, like=args.like, matrix=args.matrix).show()
if args.run and not plan.missing and plan.ask(yes=args.yes):
    exp.run(args.steps, **schedule, out="runs/pilot-7")
