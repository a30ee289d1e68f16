"""Inside the walls: a native taskset from text, loaded and scored by verifiers itself. Standard library and verifiers only.

It answers as environment.py of the plain dialect does: tasks are rows of a prompt and an answer, `rewards` scores replies to them.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import itertools
import json
import secrets
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nested_rl.jobs import runner
from nested_rl.jobs.runner import Wrong

IMPORTS: Final = ("asyncio", "pathlib", "pydantic", "verifiers")
"""What a native environment may import besides the plain parts of the standard library."""

MODULES: Final = (
    *runner.MODULES,
    *IMPORTS,
    "verifiers.v1",
    "verifiers.v1.envs.single_agent",
    "verifiers.v1.harnesses.null",
    "verifiers.v1.utils.loaders",
)

MOST_TASKS: Final = 10_000
"""A taskset with more than this must say that it is INFINITE: the trainer lists every other one whole."""

HOME: Final = "/root/.nested-rl/prime-rl/{run}/work/env/{module}/"
"""Where the module believes to be, with its data beside it: a place such as it will have on a machine, another one every time."""

_SOUND: Final = """\
from __future__ import annotations
import verifiers.v1 as vf
class Data(vf.TaskData):
    answer: str
class Question(vf.Task[Data]):
    @vf.stop
    async def once(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1
    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        await asyncio.sleep(0)
        return float(trace.last_reply == self.data.answer)
class Config(vf.TasksetConfig):
    n: int = 2
class Questions(vf.Taskset[Question, Config]):
    def load(self):
        return [Question(Data(idx=i, prompt=str(i), answer="1"), self.config.task) for i in range(self.config.n)]
import asyncio
__all__ = ["Questions"]
"""


def warm() -> None:
    """Go the whole way once, so that everything which is imported on the way is there before the walls go up."""
    native = Native()
    for request in (
        {"op": "load", "source": _SOUND, "data": {}},
        {"op": "describe"},
        {"op": "examples", "seed": 0, "n": 2},
        {"op": "rewards", "rows": [["0", "1", "1"], ["1", "", "1"]]},
    ):
        reply = native.answer(request)
        if "error" in reply:
            raise RuntimeError(f"verifiers cannot be used: {reply['error']}")
    native.forget()


def serve(pipe: int, *, log_bytes: int) -> None:
    """Answer until the controller hangs up."""
    runner.serve(pipe, log_bytes=log_bytes, environment=Native())


class Native(runner.Environment):
    """A native environment.py, loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = Loop()
        self._tasks: dict[tuple[str, str], Any] = {}
        self._config: Any = None
        self._found: list[Any] = []
        package = f"job_{secrets.token_hex(6)}"
        self._package = types.ModuleType(package)
        self._module.__name__ = f"{package}.environment"
        run = f"{secrets.token_hex(8)}-{secrets.token_hex(4)}"
        self._home = HOME.format(run=run, module=package)

    def forget(self) -> None:
        """Leave no module behind."""
        for name in (self._package.__name__, self._module.__name__):
            del sys.modules[name]

    def _load(self, request: Mapping[str, Any]) -> None:
        from verifiers.v1.utils.loaders import resolve_env_config

        opened = _opener(request["data"], self._home)
        if request["source"] is not _SOUND:
            builtins.open = io.open = opened  # type: ignore[assignment] # pathlib opens through io
        scope = self._module.__dict__
        scope["__file__"] = f"{self._home}{runner.CODE}"
        scope["__package__"] = self._package.__name__
        sys.modules |= {self._package.__name__: self._package, self._module.__name__: self._module}
        exec(compile(request["source"], runner.CODE, "exec", dont_inherit=True), scope)  # noqa: S102 - this process is the sandbox
        self._package.__dict__.update(
            {name: scope[name] for name in ("__all__", *scope.get("__all__", ())) if name in scope}
        )
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        taskset = {"id": self._package.__name__}
        self._config = resolve_env_config({"taskset": taskset, "agent": agent})
        settings = request.get("settings") or {}
        if settings:
            self._set(settings, taskset, agent)

    def _set(self, settings: Mapping[str, Any], taskset: Mapping[str, Any], agent: Mapping[str, Any]) -> None:
        from verifiers.v1.utils.loaders import resolve_env_config

        try:
            self._config = resolve_env_config({"taskset": {**taskset, **settings}, "agent": agent})
        except ValueError as error:  # pydantic's are some
            raise Wrong("settings", str(error)) from None

    def _first(self, n: int) -> tuple[Any, list[Any]]:
        """A taskset made anew, and its first tasks."""
        from verifiers.v1.utils.loaders import load_taskset

        taskset = load_taskset(self._config.taskset)
        load = taskset.load
        taskset.load = lambda: map(_checked, itertools.count(), load())
        return taskset, list(itertools.islice(iter(taskset), n))

    def _describe(self, request: Mapping[str, Any]) -> Any:
        """How many tasks (at most one more than MOST_TASKS), whether endless, which rewards, and those that need a runtime.

        With `prompts` = [start, end]: what those tasks ask.
        """
        if (span := request.get("prompts")) is not None:
            return [task.data.prompt_text for task in self._found[span[0] : span[1]]]
        taskset, found = self._first(MOST_TASKS + 1)
        self._found = found
        hooks = found[0].hooks("reward") if found else []
        runtime = [
            hook.__name__ for hook in hooks if "runtime" in hook.__code__.co_varnames[: hook.__code__.co_argcount]
        ]
        return {
            "tasks": len(found),
            "infinite": bool(type(taskset).INFINITE),
            "rewards": [hook.__name__ for hook in hooks],
            "runtime": runtime,
            "largest": max((len(_wire(i, task)) for i, task in enumerate(found)), default=0),
        }

    def _examples(self, request: Mapping[str, Any]) -> list[list[str]]:
        _, found = self._first(request["n"])
        rows = [[task.data.prompt_text, _answer(i, task.data)] for i, task in enumerate(found)]
        self._tasks |= {(prompt, answer): task for (prompt, answer), task in zip(rows, found, strict=True)}
        return rows

    def _rewards(self, request: Mapping[str, Any]) -> list[float]:
        values = []
        for self._row, (prompt, completion, answer) in enumerate(request["rows"]):
            task = self._tasks[prompt, answer]
            trace = self._trace(task, completion)
            self._loop.run_until_complete(_scored(task, trace))
            values.append(runner._number(self._row, trace.reward))  # noqa: SLF001 - one module in two files
        return values

    def _trace(self, task: Any, completion: str) -> Any:
        import verifiers.v1 as vf

        asked = vf.MessageNode(message=vf.UserMessage(content=task.data.prompt_text))
        said = vf.MessageNode(parent=0, sampled=True, message=vf.AssistantMessage(content=completion))
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=vf.AgentInfo(config=self._config.agent),
        )
        trace.nodes.extend((asked, said))
        return trace


class Loop(asyncio.base_events.BaseEventLoop):
    """An event loop without descriptors: behind the walls there are no sockets and no pipes to wait on, only time."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self

    def select(self, timeout: float | None) -> Sequence[Any]:
        """Wait for nothing but time."""
        if timeout is None:
            raise RuntimeError("it waits for something that will never happen here")
        time.sleep(max(0.0, timeout))
        return ()

    def _process_events(self, events: Sequence[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


async def _scored(task: Any, trace: Any) -> None:
    """Score, and let out what the author's code raised instead of what verifiers made of it."""
    import verifiers.v1 as vf

    try:
        await task.score(trace)
    except vf.TaskError as error:
        raise error.__cause__ or error from None


def _checked(index: int, task: Any) -> Any:
    import verifiers.v1 as vf

    if not isinstance(task, vf.Task):
        raise Wrong("row", f"load() gave {runner._short(task)} as task {index}, not a vf.Task", index)  # noqa: SLF001
    return task


def _wire(index: int, task: Any) -> str:
    """The task's data as the trainer ships it."""
    try:
        return json.dumps(task.data.model_dump(mode="json"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise Wrong("row", f"the data of task {index} is not JSON: {str(error)[:200]}", index) from None


def _answer(index: int, data: Any) -> str:
    """The right answer: field `answer`, or else the first field of the author's own that is a text or a number."""
    import verifiers.v1 as vf

    own = [name for name in type(data).model_fields if name not in vf.TaskData.model_fields]
    for name in sorted(own, key=lambda name: name != "answer"):
        value = getattr(data, name)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
    raise Wrong("row", f"the data of task {index} has no field with the right answer; call it `answer`", index)


def _opener(data: Mapping[str, str], home: str) -> Callable[..., io.StringIO]:
    def open_(path: Any, mode: str = "r", *_: Any, **__: Any) -> io.StringIO:
        """The job's own data, from memory, where the package has it."""
        name = str(path)
        if not name.startswith(home) or name.removeprefix(home) not in data or mode not in {"r", "rt"}:
            known = ", ".join(data) or "none"
            raise PermissionError(
                f"open({name!r}): only the job's own data can be read ({known}), as Path(__file__).with_name('data') / NAME"
            )
        return io.StringIO(data[name.removeprefix(home)])

    return open_
