"""A run's episodes as one log file of Inspect (inspect.aisi.org.uk), whose viewer shows conversations, tool calls and scores.

    nested-rl export RUN --format inspect --out logs/RUN.json
    pip install inspect-ai && inspect view --log-dir logs

One sample an episode: what was said, the reward and its parts as scores, and what else a reader asks for as metadata. The items of the
evaluations are in no record, so they are not in here either.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nested_rl.errors import RunDirError, SettingsError
from nested_rl.rundir import RunDir, write_atomic
from nested_rl.types import JSON, Episode, Message, ToolCall, Turn

VERSION = 2
"""Of the log format."""


def write(run: RunDir, out: Path, *, damaged: dict[str, str] | None = None) -> int:
    """Write the log; how many episodes it holds. Raises SettingsError when `out` exists or there is no episode.

    An episode whose files cannot be read raises RunDirError; with `damaged` it is left out, and noted there with the reason.
    """
    if out.suffix != ".json":
        raise SettingsError(f"{out}: Inspect reads logs that end in .json")
    if out.exists():
        raise SettingsError(f"{out} exists already; delete it or choose another place")
    episodes = list(run.episodes(left_out=damaged))
    if not episodes:
        raise SettingsError(f"{run.path} has no finished episode to export")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{out.parent}: {error.strerror or error}") from error
    write_atomic(out, json.dumps(_log(run, episodes), ensure_ascii=False, allow_nan=False).encode(errors="replace"))
    return len(episodes)


def _log(run: RunDir, episodes: Sequence[Episode]) -> dict[str, JSON]:
    times = [float(event["t"]) for event in run.events("run.started", "step.done", "run.finished")]
    began, ended = (_when(t) for t in ((times[0], times[-1]) if times else (0.0, 0.0)))
    counted = [episode.reward for episode in episodes if not episode.masked]
    mean = sum(counted) / len(counted) if counted else 0.0
    name = run.path.resolve().name
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": name,
            "run_id": name,
            "created": began,
            "task": f"nested_rl {name}",
            "task_id": name,
            "model": "nested_rl/agent",
            "config": {},
            "dataset": {"name": ", ".join(sorted({e.task.family for e in episodes})), "samples": len(episodes)},
            "packages": {"nested_rl": str(run.spec.get("nested_rl", "unknown"))},
        },
        "results": {
            "total_samples": len(episodes),
            "completed_samples": len(counted),
            "scores": [{"name": "reward", "scorer": "reward", "metrics": {"mean": {"name": "mean", "value": mean}}}],
        },
        "stats": {"started_at": began, "completed_at": ended},
        "samples": [_sample(episode) for episode in episodes],
    }


def _sample(episode: Episode) -> dict[str, JSON]:
    messages = list(_messages(episode.transcript.conversation))
    opening = [message for message in messages if message["role"] in ("system", "user")]
    last = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    usage = [turn.usage for turn in episode.transcript.turns]
    told = {
        "input_tokens": sum(u.prompt_tokens for u in usage),
        "output_tokens": sum(u.completion_tokens for u in usage),
    }
    choices = [{"message": last, "stop_reason": "stop"}] if last else []
    return {
        "id": f"{episode.group:05d}-{episode.member}",
        "epoch": 1,
        "input": opening or episode.task.prompt,
        "target": "",
        "messages": messages,
        "output": {
            "model": "nested_rl/agent",
            "choices": choices,
            "usage": {**told, "total_tokens": sum(told.values())},
        },
        "scores": {name: {"value": value} for name, value in _scores(episode).items()},
        "metadata": _metadata(episode),
        **({"error": _error(episode)} if episode.masked else {}),
    }


def _scores(episode: Episode) -> Mapping[str, float]:
    if episode.masked:
        return {}
    post = episode.outcome.post
    more = {"post": post.value, "uplift": episode.outcome.uplift} if post else {}
    return {"reward": episode.reward, **{f"reward/{name}": part for name, part in episode.parts.items()}, **more}


def _metadata(episode: Episode) -> dict[str, JSON]:
    outcome = episode.outcome
    return {
        "task": episode.task.id,
        "family": episode.task.family,
        "difficulty": episode.task.difficulty,
        "version": episode.version,
        "valid": outcome.valid,
        "attempts": outcome.attempts,
        "base": outcome.base,
        "baselines": {base: score.value for base, score in outcome.baselines.items()},
        "end": episode.transcript.end,
        "fault": outcome.fault,
        "error": outcome.error,
        "problems": [[f"{p.code} {p.where}: {p.message}" for p in v.problems] for v in episode.validations],
        "seconds": outcome.seconds,
        "usd": outcome.usd + episode.agent_usd,
        "machine": episode.result.machine if episode.result else None,
        "training curve": list(episode.result.curve) if episode.result else [],
    }


def _error(episode: Episode) -> dict[str, str]:
    text = episode.outcome.error or "masked"
    return {"message": text, "traceback": text, "traceback_ansi": text}


def _messages(conversation: Sequence[Message | Turn]) -> Iterator[dict[str, JSON]]:
    """What was said. Calls without an id get one, and their answers, which follow in order, the same."""
    waiting: list[str] = []
    for place, said in enumerate(conversation):
        message = said.message if isinstance(said, Turn) else said
        row: dict[str, JSON] = {"role": message.role, "content": message.content, "id": f"m{place}"}
        if message.role == "assistant":
            calls = [_call(call, f"m{place}-{n}") for n, call in enumerate(message.tool_calls)]
            waiting = [str(call["id"]) for call in calls]
            row |= {"source": "generate", "model": "nested_rl/agent", **({"tool_calls": calls} if calls else {})}
        elif message.role == "tool":
            ordered = waiting.pop(0) if waiting else ""
            row |= {"function": message.name, "tool_call_id": message.tool_call_id or ordered}
        yield row


def _call(call: ToolCall, name: str) -> dict[str, JSON]:
    row: dict[str, JSON] = {"id": call.id or name, "function": call.name or "?", "arguments": dict(call.arguments)}
    return row | {"type": "function"} | ({"parse_error": call.error} if call.error else {})


def _when(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).isoformat()
