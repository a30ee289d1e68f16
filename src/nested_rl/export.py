"""A run's episodes as data for others: rows for a table, and successful transcripts as chats to train on.

What leaves the run is what the agent saw and wrote, and numbers about it. The items of the evaluations are in no record, the
run's secret is never read, and the per-item scores and the logs of jobs stay where they are.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import frozen

from nested_rl.errors import RunDirError, SettingsError
from nested_rl.harness.tools import BRIEF_SCHEMAS, SCHEMAS
from nested_rl.rundir import RunDir
from nested_rl.types import JSON, Episode, Message, ToolCall, Turn

Format: TypeAlias = Literal["sft", "datasets"]

TOOL_HARNESS = "nested_rl.harness.agent.ToolHarness"
"""The harness whose tools are known; a run with another one is exported without a `tools` column."""

FIELDS: Mapping[str, str] = {
    "messages": "the conversation in the OpenAI format; arguments of tool calls are JSON texts",
    "tools": "schemas of the tools the agent had, as a JSON text",
    "task": "id of the task",
    "family": "its family",
    "difficulty": "its difficulty",
    "reward": "reward of the episode",
    "attempts": "submissions made; the last one was accepted",
    "base": "base model of the accepted job",
    "post": "score of the model that the job trained; null if none was scored",
    "best_baseline": "score of the best untrained base on the same items",
    "version": "updates the agent had seen when it wrote this",
    "episode": "where it is in the run: GROUP-MEMBER",
}
"""The columns of a chat, in order. In an sft file `tools` is a list, as fine-tuning services take it."""


@frozen(kw_only=True)
class Exported:
    """What was written, and why the rest was not."""

    path: Path
    chats: int
    left_out: Mapping[str, int]
    damaged: Mapping[str, str] = {}
    """Episodes whose files cannot be read, and why; `left_out` counts them too."""

    def __str__(self) -> str:
        rest = ", ".join(f"{n} {why}" for why, n in self.left_out.items() if n)
        first = f"; the first that could not be read: {next(iter(self.damaged.values()))}" if self.damaged else ""
        return f"{self.path}: {self.chats} chats" + (f" (left out: {rest}{first})" if rest else "")


# ---------------------------------------------------------------- a table


def rows(run: RunDir, *, damaged: dict[str, str] | None = None) -> Iterator[dict[str, JSON]]:
    """One flat row an episode, in order. What is not known is None; `step` is None until the group is trained on.

    An episode whose files cannot be read raises RunDirError; with `damaged` it is left out, and noted there with the reason.
    """
    steps = {int(group): int(e["step"]) for e in run.events("step.done") for group in e.get("groups", ())}
    return (_row(episode, steps.get(episode.group)) for episode in run.episodes(left_out=damaged))


def _row(episode: Episode, step: int | None) -> dict[str, JSON]:
    task, outcome, transcript = episode.task, episode.outcome, episode.transcript
    best, post = outcome.best_baseline, outcome.post
    return {
        "group": episode.group,
        "member": episode.member,
        "step": step,
        "version": episode.version,
        "task": task.id,
        "family": task.family,
        "difficulty": task.difficulty,
        "variant": task.variant,
        "reward": None if episode.masked else episode.reward,
        **{f"reward/{name}": value for name, value in episode.parts.items()},
        "masked": episode.masked,
        "valid": outcome.valid,
        "attempts": outcome.attempts,
        "problems": ",".join(p.code for v in episode.validations for p in v.problems),
        "base": outcome.base,
        "first_base": outcome.first_base,
        "advanced": outcome.advanced,
        "families": ",".join(outcome.families),
        "best_baseline": best.value if best else None,
        "post": post.value if post else None,
        "uplift": outcome.uplift,
        "noise": outcome.noise if math.isfinite(outcome.noise) else None,
        "cost": outcome.cost,
        "cost_limit": outcome.cost_limit,
        "seconds": outcome.seconds,
        "usd": outcome.usd,
        "fault": outcome.fault,
        "error": outcome.error,
        "asked_baselines": outcome.asked_baselines,
        "reused": outcome.reused,
        "end": transcript.end,
        "truncated": transcript.truncated,
        "turns": len(transcript.turns),
        "tokens": sum(len(t.ids) if t.ids is not None else t.usage.completion_tokens for t in transcript.turns),
        "agent_s": episode.agent_s,
        "agent_usd": episode.agent_usd,
        "job_key": episode.job_key,
    }


# ---------------------------------------------------------------- chats


def write(run: RunDir, out: Path, *, kind: Format = "sft", min_reward: float = 0.0) -> Exported:
    """Successful transcripts as chats: `kind` "sft" is one JSONL file, "datasets" a folder with a dataset card.

    Successful is an episode with a valid job and a reward of at least `min_reward`. Raises SettingsError when `out` exists
    or no episode is successful; then nothing is written.
    """
    if not math.isfinite(min_reward):
        raise SettingsError(f"min_reward must be a finite number, not {min_reward}")
    if out.exists():
        raise SettingsError(f"{out} exists already; delete it or choose another place")
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(6)}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if kind == "datasets":
            (unfinished / "data").mkdir(parents=True)
            # As text: in a column of structs every tool would get the arguments of all the others, set to null.
            told = _write_chats(run, unfinished / "data" / "train.jsonl", min_reward, written=json.dumps)
            (unfinished / "README.md").write_text(_card(run, told, min_reward), encoding="utf-8")
        else:
            told = _write_chats(run, unfinished, min_reward, written=list)
        if not told.families:
            rest = ", ".join(f"{n} {why}" for why, n in told.left_out.items() if n) or "no episode is finished yet"
            raise SettingsError(f"{run.path} has no chat to export: {rest}")
        unfinished.rename(out)
    except OSError as error:
        raise RunDirError(f"{out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return Exported(path=out, chats=told.families.total(), left_out=told.left_out, damaged=told.damaged)


@frozen
class _Told:
    families: Counter[str]
    left_out: Counter[str]
    damaged: Mapping[str, str]


def _write_chats(run: RunDir, path: Path, min_reward: float, *, written: Callable[[JSON], JSON]) -> _Told:
    known = _knows_tools(run)
    families: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    damaged: dict[str, str] = {}
    with path.open("w", encoding="utf-8", errors="replace") as file:  # bytes that were no text in what an agent wrote
        for episode in run.episodes(left_out=damaged):
            why = _unsuccessful(episode, min_reward)
            messages = None if why else chat(episode.transcript.conversation)
            if messages is None:
                left_out[why or "with a call that could not be read"] += 1
                continue
            families[episode.task.family] += 1
            tools = written(_tools(messages)) if known else None
            file.write(json.dumps(_chat_row(episode, messages, tools), ensure_ascii=False, allow_nan=False) + "\n")
    if damaged:
        left_out["that could not be read"] = len(damaged)
    return _Told(families, left_out, damaged)


def _knows_tools(run: RunDir) -> bool:
    """Whether the agent had our tools; another harness may have given it others."""
    harness = run.spec.get("parts", {}).get("harness", {}).get("name", TOOL_HARNESS)
    return bool(harness == TOOL_HARNESS)


def _tools(messages: Sequence[JSON]) -> JSON:
    """Schemas of the tools the agent had: a very small one, which is given no system prompt, had one less."""
    large = bool(messages) and messages[0]["role"] == "system"
    return SCHEMAS if large else BRIEF_SCHEMAS


def _unsuccessful(episode: Episode, min_reward: float) -> str:
    if episode.masked or not episode.outcome.valid:
        return "without a valid job"
    return f"with a reward below {min_reward:g}" if episode.reward < min_reward else ""


def _chat_row(episode: Episode, messages: list[JSON], tools: JSON) -> dict[str, JSON]:
    outcome = episode.outcome
    best, post = outcome.best_baseline, outcome.post
    row = {
        "messages": messages,
        "tools": tools,
        "task": episode.task.id,
        "family": episode.task.family,
        "difficulty": episode.task.difficulty,
        "reward": episode.reward,
        "attempts": outcome.attempts,
        "base": outcome.base,
        "post": post.value if post else None,
        "best_baseline": best.value if best else None,
        "version": episode.version,
        "episode": f"{episode.group:05d}-{episode.member}",
    }
    return {name: row[name] for name in FIELDS if name != "tools" or tools is not None}


def chat(conversation: Sequence[Message | Turn]) -> list[JSON] | None:
    """A conversation in the OpenAI format; None if a call in it could not be read, for nobody should learn to write those.

    Calls without an id get one, and calls that were never answered (after the accepted submission) are left away: the format
    wants an answer to every call.

    >>> said = Message(role="assistant", tool_calls=(ToolCall(name="list_files"),))
    >>> for message in chat([Turn(message=said), Message(role="tool", content="none", name="list_files")]):
    ...     print(message)
    {'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'call_0', 'type': 'function', 'function': {'name': 'list_files', 'arguments': '{}'}}]}
    {'role': 'tool', 'content': 'none', 'tool_call_id': 'call_0', 'name': 'list_files'}
    """
    said = [part.message if isinstance(part, Turn) else part for part in conversation]
    ids = map("call_{}".format, itertools.count())
    found: list[JSON] = []
    for place, message in enumerate(said):
        if message.role == "tool":
            continue  # written with the call it answers
        if any(call.error is not None for call in message.tool_calls):
            return None
        answers = list(itertools.takewhile(lambda m: m.role == "tool", said[place + 1 :]))
        pairs = _pairs(message.tool_calls, answers)
        if len(pairs) < len(answers):
            return None
        row: dict[str, JSON] = {"role": message.role, "content": message.content}
        named = [(next(ids), call, answer) for call, answer in pairs]
        if named:
            row["tool_calls"] = [_call(call, name) for name, call, _ in named]
        found.append(row)
        for name, call, answer in named:
            found.append({"role": "tool", "content": answer.content, "tool_call_id": name, "name": call.name})
    return found


def _pairs(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[tuple[ToolCall, Message]]:
    """Each answered call with its answer: by id where there is one, else in order."""
    if all(answer.tool_call_id for answer in answers):
        by_id = {answer.tool_call_id: answer for answer in answers}
        return [(call, by_id[call.id]) for call in calls if call.id in by_id]
    return list(zip(calls, answers, strict=False))


def _call(call: ToolCall, name: str) -> JSON:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": arguments}}


# ---------------------------------------------------------------- the card

_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train.jsonl
task_categories:
- text-generation
tags:
- tool-use
- reinforcement-learning
- nested-rl
---
# Transcripts of the run {name}

{total} conversations in which an agent wrote a reinforcement-learning training job that was accepted and run, with a reward
of at least {min_reward:g}. Made by nested_rl {version} (seed {seed}); the agent's own words, as sampled while it was trained.

| family | conversations |
| --- | --- |
{families}

| column | meaning |
| --- | --- |
{columns}

The same conversation can be here more than once: an agent that has learned repeats itself. The questions of the hidden
evaluations are not in this data. No licence is stated; choose one before you publish it.
"""


def _card(run: RunDir, told: _Told, min_reward: float) -> str:
    spec = run.spec
    columns = [(name, meaning) for name, meaning in FIELDS.items() if name != "tools" or _knows_tools(run)]
    return _CARD.format(
        name=run.path.resolve().name,
        total=told.families.total(),
        min_reward=min_reward,
        version=spec.get("nested_rl", "of an unknown version"),
        seed=spec.get("seed", "unknown"),
        families="\n".join(f"| {family} | {n} |" for family, n in sorted(told.families.items())),
        columns="\n".join(f"| `{name}` | {meaning} |" for name, meaning in columns),
    )
