"""The published agent on the held-out family: its adapter, served by vLLM, writes the jobs; they run and are scored here.

    vllm serve Qwen/Qwen3.6-35B-A3B --enable-lora --max-lora-rank 8 --enable-auto-tool-choice --tool-call-parser qwen3_xml \\
        --lora-modules published=Danau5tin/ai-trains-ai-trainer
    python examples/12_published_adapter.py http://localhost:8000/v1 [episodes] [served name of the adapter] [of its base]

Needs a GPU that holds the base model, or any server that has the two. Both sides, adapter and base, get the same tasks and seeds;
the jobs train nano models on this computer, so that all it costs is the GPU. Published for full-scale triage: 0.399 to 0.545.
"""

import sys

import nested_rl as nrl

if len(sys.argv) < 2:
    sys.exit(__doc__)
url = sys.argv[1]
n = int(sys.argv[2]) if len(sys.argv) > 2 else 24
adapter, base = sys.argv[3:5] if len(sys.argv) > 4 else ("published", "Qwen/Qwen3.6-35B-A3B")


def agent(model: str) -> nrl.policies.FrozenPolicy:
    return nrl.policies.FrozenPolicy(model, base_url=url, key_env="", context_tokens=32_768, temperature=1.0)


exp = nrl.Experiment()
run = exp.run(steps=1, groups_per_step=1, group_size=2, eval_every=0, out="runs/example-adapter")
triage = nrl.tasks.load("triage")
trained = exp.evaluate(triage, policy=agent(adapter), n=n, out=run.path)
untrained = exp.evaluate(triage, policy=agent(base), n=n, out=run.path)

print(trained)
print(untrained)
print("difference:", trained.compare(untrained))
