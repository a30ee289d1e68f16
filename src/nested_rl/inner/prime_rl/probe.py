"""Does a full-scale job's environment give usable questions, and does its reward tell right from wrong? For both dialects.

Static checks first, then a moment in the sandbox: the plain dialect as at nano scale, the native one in a fork of a process that has
verifiers loaded. Verdicts are made here, from raw rows and rewards.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from nested_rl import redact, tasks
from nested_rl.errors import MissingExtra
from nested_rl.inner.prime_rl import arguments, native, probe_child
from nested_rl.inner.prime_rl.keys.allowed import ARGUMENTS
from nested_rl.inner.prime_rl.keys.reading import NAME
from nested_rl.inner.prime_rl.problems import told
from nested_rl.inner.prime_rl.taskset import dialect
from nested_rl.inner.prime_rl.wording import HINTS, worded
from nested_rl.interfaces import TaskFamily
from nested_rl.jobs import probe as plain_probe
from nested_rl.jobs.check import check
from nested_rl.jobs.folder import CODE, DATA, JOB, JobConfig
from nested_rl.jobs.probe import Findings, explained, look
from nested_rl.jobs.problems import plain, problem
from nested_rl.jobs.sandbox import Environment, EnvironmentFault, EnvironmentMisbehaved, Level, Limits, Zygote
from nested_rl.jobs.surface import ProbeRules, Surface
from nested_rl.types import Draft, Problem

log = redact.logger(__name__)

LIMITS: Final = Limits(cpu_s=4, memory_mib=512, life_s=20.0, reply_bytes=1 << 24)
"""What the probe of a native environment may use, on top of what verifiers itself has taken."""
LARGEST: Final = 65_536
"""Characters of one task's data; the trainer ships it with every rollout."""
CALL_S: Final = 0.25
"""A native reward may take this long on average: it holds up every other rollout of its worker."""
LETTERS_A_TOKEN: Final = 3
"""English has four and more, digits and code fewer: a prompt within this bound fits, without a tokenizer."""
_TEMPLATE_TOKENS: Final = 32
_LONGEST_REPLY: Final = 16_384
_PROMPTS: Final = 2_000
_AT_ONCE: Final = 200
"""Prompts in one reply: of the longest ones, all fit."""
_MOST_ROWS: Final = 256


class Probe:
    """Warm sandboxes that a trainer's validations share. `python` is an interpreter that has verifiers; None: this one.

    `surface` says what files may hold and what is asked of rows and rewards; at most `at_once` drafts are looked at together.
    `limits` are those of a native environment.
    """

    def __init__(
        self, surface: Surface, *, python: str | None = None, at_once: int = 2, limits: Limits = LIMITS
    ) -> None:
        self._surface = surface
        self._python = python
        self._limits = limits
        self._plain = Zygote(kit=False, at_once=at_once)
        self._native = Zygote(kit=False, python=python, at_once=at_once, runner=probe_child.__name__)

    def require(self) -> None:
        """MissingExtra when no interpreter with verifiers is at hand; then only plain environments can be probed."""
        _has_verifiers(self._python)

    @property
    def level(self) -> Level:
        """The mechanism in use. Starts a process if need be."""
        return self._plain.level

    async def examine(self, draft: Draft, config: JobConfig, families: Sequence[TaskFamily]) -> Findings:
        """Everything that is wrong with environment.py and the data. Raises SandboxUnavailable, or MissingExtra for verifiers."""
        work = functools.partial(self._examine, draft.files, config, families)
        return await asyncio.get_running_loop().run_in_executor(self._plain.threads, work)

    async def close(self) -> None:
        """End the sandboxes."""
        await asyncio.to_thread(self._plain.close)
        await asyncio.to_thread(self._native.close)

    def _examine(self, files: Mapping[str, str], config: JobConfig, families: Sequence[TaskFamily]) -> Findings:
        problems = self.written(files, families)
        if problems:
            return Findings(problems=problems)
        rules = fitted(self._surface.probe, config)
        if dialect(files) == "plain":
            return plain_probe.probe(files, rules, zygote=self._plain, families=families)
        self.require()
        settings = arguments.given(config[NAME])
        return _native(files, rules, settings, zygote=self._native, families=families, limits=self._limits)

    def written(self, files: Mapping[str, str], families: Sequence[TaskFamily]) -> tuple[Problem, ...]:
        """What depends on the text of the files alone. So does a failure in here, and it counts as a problem of the job."""
        try:
            sizes = self._surface.files
            is_native = len(files.get(CODE, "")) <= sizes.code_bytes and dialect(files) == "native"
            surface, form = (native.widened(self._surface), native.form) if is_native else (self._surface, None)
            problems = check(files, surface, form)
            if is_native:
                problems = _advised(problems, files[CODE])
            big = (
                sum(len(text) for name, text in files.items() if name.startswith(DATA)) > sizes.data_bytes
            )  # told already
            return problems or (() if big else tuple(_copies(files, families)))
        except Exception:
            log.exception("the checks failed on a job, which is refused; this is a bug of nested_rl")
            return (problem("environment.syntax", CODE, "the job cannot be checked", "write plainer files"),)


@functools.cache
def _has_verifiers(python: str | None) -> None:
    if python is None or python == sys.executable:
        found = importlib.util.find_spec("verifiers")
        there = found is not None and found.origin is not None  # a folder of that name is no package
    else:
        seeks = "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers') is None)"
        try:
            there = subprocess.run([python, "-c", seeks], check=False, capture_output=True).returncode == 0
        except OSError:
            there = False
    if not there:
        raise MissingExtra(f"probing a native environment with {python or sys.executable}", "prime-rl")


def fitted(rules: ProbeRules, config: JobConfig) -> ProbeRules:
    """The rules for one job: a batch needs that many prompts, and a prompt must leave room for its completion."""
    training, rollout = config["training"], config["rollout"]
    prompts = training["batch_size"] // training["group_size"]
    room = LETTERS_A_TOKEN * (training["seq_len"] - rollout["max_tokens"] - _TEMPLATE_TOKENS)
    return evolve(
        rules,
        rows=max(rules.rows, min(prompts, _MOST_ROWS)),
        prompt_chars=max(1, min(rules.prompt_chars, room)),
        reply_chars=max(rules.reply_chars, min(4 * rollout["max_tokens"], _LONGEST_REPLY)),
    )


# ---------------------------------------------------------------- the native dialect


def _advised(problems: Sequence[Problem], source: str) -> tuple[Problem, ...]:
    """With hints of this dialect. Names of the earlier verifiers are told as such, and not one by one."""
    earlier = list(_earlier(source))
    if earlier:
        problems = [*earlier, *(one for one in problems if one.code == "environment.missing")]
    return tuple(evolve(one, hint=HINTS.get(one.hint, one.hint)) for one in problems)


def _earlier(source: str) -> Iterator[Problem]:
    """Whether it takes the names of `verifiers` itself for those of verifiers.v1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            nodes = list(ast.walk(ast.parse(source)))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return  # told already
    if any(isinstance(node, ast.Attribute) and node.attr == "v1" for node in nodes):
        return
    for node in nodes:
        if isinstance(node, ast.Import) and any(alias.name == "verifiers" for alias in node.names):
            message, hint = "`import verifiers` gives the earlier verifiers", "write `import verifiers.v1 as vf`"
            yield problem("environment.import", f"{CODE}:{node.lineno}", message, hint, name="verifiers")


def _native(
    files: Mapping[str, str],
    rules: ProbeRules,
    settings: Mapping[str, Any],
    *,
    zygote: Zygote,
    families: Sequence[TaskFamily],
    limits: Limits,
) -> Findings:
    try:
        with zygote.spawn(files, limits, settings) as environment:
            said = environment.describe()
            problems = tuple(_described(said))
            if problems:
                return Findings(problems=problems)
            listed = environment.describe
            found = _held_out(listed, said["tasks"], tasks.held_out(families), look(environment, rules, families))
            if not found.problems:
                found = evolve(found, problems=tuple(_slow(environment, rules)))
    except EnvironmentMisbehaved as fault:
        if fault.kind == "settings":
            where = f"{JOB}:[{NAME}] {ARGUMENTS}"
            message = f"the taskset does not take these settings: {plain(str(fault), 300)}"
            return Findings(
                problems=(told("prime_rl.argument", where, message, "name them as its config does", name="taskset"),)
            )
        return Findings(problems=(worded(explained(fault, families)),))
    except EnvironmentFault as fault:
        return Findings(problems=(worded(explained(fault, families)),))
    return evolve(found, problems=tuple(worded(one, rows=rules.rows) for one in found.problems))


def _described(said: object) -> Iterator[Problem]:
    """What is wrong with a taskset as a whole. `said` came from the agent's process."""
    match said:
        case {
            "tasks": int(count),
            "infinite": bool(infinite),
            "rewards": [*rewards],
            "runtime": [*runtime],
            "largest": int(largest),
        }:
            pass
        case _:
            yield problem("examples.ended", f"{CODE} load()", "load() gave no proper reply", "give a list of vf.Task")
            return
    if count > probe_child.MOST_TASKS and not infinite:
        message = f"load() gives more than {probe_child.MOST_TASKS} tasks, and the trainer lists them all"
        yield problem("examples.slow", f"{CODE} load()", message, "give fewer, or set INFINITE = True on the taskset")
    if count and not rewards:
        yield problem("environment.missing", CODE, *native.NO_REWARD, name="reward")
    if runtime:
        message = f"{plain(', '.join(map(str, runtime)))} asks for `runtime`, of which a rollout here has none"
        yield problem("environment.arguments", CODE, message, "take task and trace", name="reward", arguments="trace")
    if largest > LARGEST:
        message = f"the data of one task has {largest} characters; at most {LARGEST} are allowed"
        yield problem("examples.prompt", f"{CODE} load()", message, "keep only what the reward needs")


def _held_out(listed: Callable[..., Any], count: int, held_out: Callable[[str], bool], found: Findings) -> Findings:
    """What was found, and how many of all tasks belong to an evaluation: by chance one in four, and the package drops them."""
    many = 0
    for start in range(0, count, _AT_ONCE):
        span = [start, min(count, start + _AT_ONCE)]
        prompts = listed(prompts=span)
        if not isinstance(prompts, list) or [type(text) for text in prompts] != [str] * (span[1] - span[0]):
            raise EnvironmentMisbehaved("load() gave no proper reply", during="examples")
        many += sum(map(held_out, prompts))
    notes = {**found.notes, "rows/listed": count, "rows/held_out": many}
    if 2 * many <= count or any(one.code == "examples.held_out" for one in found.problems):
        return evolve(found, notes=notes)
    message = f"{many} of its {count} tasks belong to the evaluations; tasks like these are dropped in training"
    more = problem("examples.held_out", f"{CODE} load()", message, "draw other questions")
    return evolve(found, problems=(*found.problems, more), notes=notes)


def _slow(environment: Environment, rules: ProbeRules) -> Iterator[Problem]:
    """Whether a reward takes so long that it holds up the other rollouts."""
    rows = environment.examples(plain_probe.SEED, rules.rows)[: rules.graded]
    batch = [{"prompt": row["prompt"], "completion": row["answer"], "answer": row["answer"]} for row in rows]
    started = time.monotonic()
    environment.rewards(batch)
    mean = (time.monotonic() - started) / max(1, len(batch))
    if mean > CALL_S:
        message = f"a reward takes {mean:.2f} s, and nothing else of its worker runs meanwhile"
        yield problem("reward.slow", f"{CODE} reward", message, "do not sleep; precompute in load()")


# ---------------------------------------------------------------- questions of the evaluations in the text


def _copies(files: Mapping[str, str], families: Sequence[TaskFamily]) -> Iterator[Problem]:
    """Whether the questions that stand in the files are mostly those of an evaluation. By chance one in four is."""
    held_out = tasks.held_out(families)
    for name in sorted(files):
        if not name.startswith(DATA):
            continue
        texts = [text for line in files[name].splitlines() if line.strip() for text in _texts(json.loads(line))]
        step = max(1, len(texts) // _PROMPTS)
        questions = [text for text in texts[::step] if _asked(text, families)]
        count = sum(map(held_out, questions))
        if count > 1 and 2 * count > len(questions):
            message = f"{count} of the {len(questions)} questions looked at in it belong to the evaluations"
            yield problem("examples.held_out", name, message, "draw other questions")


def _texts(value: object) -> Iterator[str]:
    """The texts of a JSON value, also deep inside."""
    todo = [value]
    while todo:
        match todo.pop():
            case str(text):
                yield text
            case dict(table):
                todo += table.values()
            case list(values):
                todo += values
            case _:
                pass


def _asked(text: str, families: Sequence[TaskFamily]) -> bool:
    return any(_key(family, text) is not None for family in families)


def _key(family: TaskFamily, text: str) -> str | None:
    try:
        return family.key(text)
    except Exception:  # noqa: BLE001 - a family of the user's may raise anything; then it is no question of it
        return None
