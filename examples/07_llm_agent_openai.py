"""A large language model as the agent, beside the trained nano agent: the same tasks, jobs, machines and hidden evaluation.

    export OPENROUTER_API_KEY=...
    python examples/07_llm_agent_openai.py qwen/qwen3-coder https://openrouter.ai/api/v1 [steps] [episodes a side]
    python examples/07_llm_agent_openai.py Qwen/Qwen3-8B http://localhost:8000/v1    # a vLLM server of your own

Any OpenAI-compatible server with tool calls will do. The jobs still train nano models on this computer; only the agent is
large, and reads the whole guide. It is not trained. What the model costs is what the server reports, or what `prices` makes of
the tokens.
"""

import sys

import nested_rl as nrl

if len(sys.argv) < 3:
    sys.exit(__doc__)
model, url = sys.argv[1:3]
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 25
n = int(sys.argv[4]) if len(sys.argv) > 4 else 8

key_env = "OPENROUTER_API_KEY" if "openrouter.ai" in url else "OPENAI_API_KEY"
llm = nrl.policies.FrozenPolicy(model, base_url=url, key_env=key_env, context_tokens=32_768)

exp = nrl.Experiment()
run = exp.run(steps=steps, out="runs/example-pilot")
tasks = nrl.tasks.load("calc_chain", "string_pipeline", "dispatch")

large = exp.evaluate(tasks, policy=llm, n=n, out=run.path)
nano = exp.evaluate(tasks, policy=f"{run.path}@best", n=n)

print(large)
print(nano)
print("difference:", large.compare(nano))
