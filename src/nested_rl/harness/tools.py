"""The tools of the agent, as schemas and as what they do. A wrong call is answered, never raised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from nested_rl import redact
from nested_rl.clock import Clock
from nested_rl.errors import UnknownName
from nested_rl.harness.words import BriefWords, FullWords, Words
from nested_rl.harness.workspace import Workspace, WorkspaceError
from nested_rl.interfaces import Desk
from nested_rl.types import ToolCall

README: Final = "README.md"
"""How to write a job, put there by the harness; not part of the job."""

_FULL_ONLY: Final = frozenset({"delete_file"})
"""Not offered to very small agents: they were taught the others, and write nothing that would have to be deleted."""

_PATH = "Relative path in the workspace, such as job.toml"
_TOOLS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "list_files": ("List the files in the workspace.", {}),
    "read_file": ("Read a file.", {"path": _PATH}),
    "write_file": (
        "Make or replace a file. Folders are made as needed.",
        {"path": _PATH, "content": "The whole new text of the file"},
    ),
    "edit_file": (
        "Replace one piece of text in a file. It must be there exactly once.",
        {"path": _PATH, "old": "The exact text to replace, with enough lines around it", "new": "What to put there"},
    ),
    "delete_file": ("Delete a file, such as one that is no part of a job.", {"path": _PATH}),
    "get_baseline_scores": ("Accuracy of each untrained model on this task.", {}),
    "submit_job": (
        "Hand in the job as it stands. An invalid one costs an attempt and you are told why. The last valid one ends the task.",
        {},
    ),
}


def _schema(name: str, description: str, arguments: Mapping[str, str]) -> dict[str, object]:
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


SCHEMAS: Final[tuple[Mapping[str, object], ...]] = tuple(_schema(name, *about) for name, about in _TOOLS.items())
"""JSON schemas in the form that chat templates and OpenAI-compatible servers take."""

BRIEF_SCHEMAS: Final[tuple[Mapping[str, object], ...]] = tuple(
    _schema(name, *about) for name, about in _TOOLS.items() if name not in _FULL_ONLY
)
"""Those of very small agents."""


class Toolbox:
    """The tools of one episode. Counts jobs and submissions, and remembers whether the baselines were asked for.

    `attempts` counts those of the job in hand, `jobs` the accepted ones, `waited_s` the time spent waiting for their scores.
    A `brief` one has the tools of very small agents, and their words.
    """

    def __init__(
        self,
        workspace: Workspace,
        desk: Desk,
        clock: Clock,
        *,
        max_attempts: int,
        max_jobs: int = 1,
        brief: bool = False,
    ) -> None:
        self.schemas = BRIEF_SCHEMAS if brief else SCHEMAS
        self.attempts = 0
        self.jobs = 0
        self.asked_baselines = False
        self.waited_s = 0.0
        self._workspace = workspace
        self._desk = desk
        self._words: Words = BriefWords() if brief else FullWords()
        self._names = _TOOLS.keys() - (_FULL_ONLY if brief else frozenset())
        self._clock = clock
        self._max_attempts, self._max_jobs = max_attempts, max_jobs

    def clear(self) -> None:
        """Empty the folder, but for the guide."""
        for path in self._workspace.paths():
            if path != README:
                self._workspace.remove(path)

    async def use(self, call: ToolCall) -> str:
        """Do what was asked; the reply is what the agent reads, and holds no secret. Faults of ours (disk, queue) are raised."""
        return redact.known(await self._reply(call))

    async def _reply(self, call: ToolCall) -> str:
        wrong = _wrong(call, self._names)
        if wrong:
            return self._words.bad_call(wrong)
        try:
            return await self._do(call.name, call.arguments)
        except WorkspaceError as error:
            return self._words.refused(error)

    async def _do(self, name: str, arguments: Mapping[str, str]) -> str:
        workspace, words = self._workspace, self._words
        match name:
            case "list_files":
                return words.listing(workspace.paths())
            case "read_file":
                return words.text(workspace.read(arguments["path"]))
            case "write_file":
                workspace.write(arguments["path"], arguments["content"])
                return words.done(f"{arguments['path']} is written")
            case "edit_file":
                workspace.edit(arguments["path"], arguments["old"], arguments["new"])
                return words.done(f"{arguments['path']} is changed")
            case "delete_file":
                workspace.remove(arguments["path"])
                return words.done(f"{arguments['path']} is deleted")
            case "get_baseline_scores":
                self.asked_baselines = True
                return words.accuracy(await self._desk.baselines())
            case _:
                return await self._submit()

    async def _submit(self) -> str:
        files = self._workspace.files()
        files.pop(README, None)
        self.attempts += 1
        validation = await self._desk.submit(files)
        if not validation.ok:
            return self._words.verdict(validation, attempts_left=self._max_attempts - self.attempts)
        self.jobs += 1
        if self.jobs >= self._max_jobs:
            return self._words.verdict(validation, attempts_left=0)
        self.attempts = 0
        since = self._clock.monotonic()
        feedback = await self._desk.feedback()
        self.waited_s += self._clock.monotonic() - since
        return self._words.feedback(feedback, jobs_left=self._max_jobs - self.jobs)


def _wrong(call: ToolCall, names: Collection[str]) -> str:
    """What is wrong with a call; empty when nothing is."""
    if call.error is not None:
        return f"the call could not be read ({call.error}); call one tool with its arguments"
    if call.name not in names:
        return str(UnknownName("tool", call.name[:80], names))
    wanted = _TOOLS[call.name][1]
    takes = f"{call.name} takes {', '.join(wanted) or 'no arguments'}"
    for argument in wanted:
        if argument not in call.arguments:
            return f"argument {argument!r} is missing; {takes}"
    for argument, value in call.arguments.items():
        if argument not in wanted:
            return f"argument {argument[:80]!r} is not known; {takes}"
        if not isinstance(value, str):
            return f"argument {argument!r} must be a string; {takes}"
    return ""
