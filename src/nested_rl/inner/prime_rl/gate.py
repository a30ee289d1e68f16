"""Asks the untrained base a few of the job's own questions, before anything is trained. Runs on the machine, as the job does.

In prime-rl's environment it has verifiers and vLLM: the taskset is loaded, every prompt is sampled several times by an engine in this
process, and verifiers scores the answers as it will in training. The rewards go to scratch/gate.json. Questions that take several
turns are asked their first only, so tasksets with more are not asked at all.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any


def main() -> None:
    """Read gate-request.json, ask, score, write."""
    request = json.loads(Path("gate-request.json").read_text("utf-8"))
    config, tasks = load(request["taskset"], request["prompts"])
    replies = ask(request, [conversation(task) for task in tasks])
    rewards = asyncio.run(score(config, tasks, replies))
    Path("scratch/gate.json").write_text(json.dumps({"rewards": rewards}), "utf-8")


def load(taskset: dict[str, Any], n: int) -> tuple[Any, list[Any]]:
    """The environment's configuration and its first `n` tasks. `taskset` has its id and the settings that the job gives it."""
    from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    config = resolve_env_config({"taskset": taskset, "agent": agent})
    return config, list(itertools.islice(iter(load_taskset(config.taskset)), n))


def conversation(task: Any) -> list[dict[str, str]]:
    """What the model is asked, as chat messages of plain text."""
    system = getattr(task.data, "system_prompt", None)
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": task.data.prompt_text}]


def ask(request: dict[str, Any], conversations: list[list[dict[str, str]]]) -> list[list[str]]:
    """Several answers to each, sampled as in training."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=request["base_path"],
        max_model_len=request["max_model_len"],
        gpu_memory_utilization=request["gpu_memory_utilization"],
        enforce_eager=True,  # so few answers do not pay for a compilation
    )
    sampling = SamplingParams(
        n=request["samples"], temperature=request["temperature"], max_tokens=request["max_tokens"]
    )
    outputs = engine.chat(conversations, sampling, chat_template_kwargs=request["template"], use_tqdm=False)
    return [[answer.text for answer in output.outputs] for output in outputs]


async def score(config: Any, tasks: list[Any], replies: list[list[str]]) -> list[list[float]]:
    """Rewards by task and reply."""
    return [
        [await reward(config, task, reply) for reply in answers] for task, answers in zip(tasks, replies, strict=True)
    ]


async def reward(config: Any, task: Any, reply: str) -> float:
    """What verifiers gives for one reply to a task."""
    import verifiers.v1 as vf

    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=config.agent),
    )
    asked = vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text))
    said = vf.MessageNode(parent=0, sampled=True, message=vf.AssistantMessage(content=reply))
    trace.nodes.extend((asked, said))
    await task.score(trace)
    return float(trace.reward)


if __name__ == "__main__":
    main()
