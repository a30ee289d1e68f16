r"""A job's environment as an installable verifiers package.

Plain dialect: environment.py is wrapped as a taskset whose rewards are asked of a grading program beside it, in the sandbox
that probes and nano-scale training use. Native dialect: environment.py is a verifiers v1 taskset; the package gives it on as it is,
without the tasks that belong to an evaluation. Either way the harness is `HARNESS`, which runs in the environment's worker.

>>> native = package({"environment.py": "import verifiers.v1 as vf\n"}, family="calc_chain", name="job-1")
>>> native.dialect, native.taskset, [path for path in sorted(native.files) if "/grading/" not in path]
('native', 'job-1', ['job_1/__init__.py', 'job_1/environment.py', 'nested_rl_inline/__init__.py', 'pyproject.toml'])
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from nested_rl import cards, tasks
from nested_rl.errors import SettingsError
from nested_rl.inner.prime_rl.order import Dialect, Package
from nested_rl.jobs.folder import CODE, DATA

HARNESS: Final = "nested-rl-inline"
"""The id of the harness in every package, for `agent.harness.id`."""

_INLINE = HARNESS.replace("-", "_")
_TEMPLATE = Path(__file__).parent / "template"
_SOURCE = Path(cards.__file__).parent
_GRADING: Final = ("jobs.grading", "jobs.zygote", "answers", "wordings")
"""Modules of nested_rl that the grading program and families import. They come along with theirs: a machine has no nested_rl."""

_MENTIONS = re.compile(r"^\s*(?:import|from)\s+verifiers\b", re.MULTILINE)

_PYPROJECT = """\
[project]
name = "{name}"
version = "1"
requires-python = ">=3.11"
dependencies = ["verifiers"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{module}", "{inline}"]
"""


def dialect(files: Mapping[str, str]) -> Dialect:
    """Native when environment.py imports verifiers, plain otherwise.

    >>> dialect({"environment.py": "from verifiers import v1 as vf"}), dialect({"environment.py": "x = 'import verifiers'"})
    ('native', 'plain')
    """
    source = files.get(CODE, "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = {name.split(".")[0] for node in ast.walk(ast.parse(source)) for name in _imported(node)}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return "native" if _MENTIONS.search(source) else "plain"
    return "native" if "verifiers" in imported else "plain"


def _imported(node: ast.AST, *, members: bool = False) -> list[str]:
    """Modules that a statement imports; with `members` also what it takes from them, which may be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
        return []
    return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if members)]


def package(files: Mapping[str, str], *, family: str, name: str) -> Package:
    """A valid job's environment as a package with the taskset id `name`.

    `family` is the name of the job's family, or the path of its folder when it is none of the built-in ones: rows that are
    questions of an evaluation, of this family or of any built-in one, are dropped by the wrapper of either dialect.
    """
    module = name.replace("-", "_")
    if not (module.isidentifier() and module.islower() and module.isascii()) or module == _INLINE:
        raise SettingsError(f"package name {name!r}: use small letters, digits and dashes, beginning with a letter")
    which = dialect(files)
    own = _native(files, family) if which == "native" else _plain(files, family)
    return Package(
        taskset=name,
        dialect=which,
        files={
            "pyproject.toml": _PYPROJECT.format(name=name, module=module, inline=_INLINE),
            f"{_INLINE}/__init__.py": (_TEMPLATE / "inline.py").read_text("utf-8"),
            **{f"{module}/{path}": text for path, text in own},
        },
    )


def _native(files: Mapping[str, str], family: str) -> Iterator[tuple[str, str]]:
    yield "__init__.py", (_TEMPLATE / "kept.py").read_text("utf-8")
    yield CODE, files[CODE]
    yield from ((path, text) for path, text in files.items() if path.startswith(DATA))
    yield from _library(family)


def _plain(files: Mapping[str, str], family: str) -> Iterator[tuple[str, str]]:
    for part in ("taskset.py", "asking.py"):
        yield part, (_TEMPLATE / part).read_text("utf-8")
    yield "__init__.py", '"""A wrapped job."""\n\nfrom .taskset import PlainTaskset\n\n__all__ = ["PlainTaskset"]\n'
    yield f"job/{CODE}", files[CODE]
    yield from ((f"job/{path}", text) for path, text in files.items() if path.startswith(DATA))
    yield from _library(family)


def _library(family: str) -> Iterator[tuple[str, str]]:
    library = "grading/nested_rl"
    yield f"{library}/__init__.py", '"""What grading needs of nested_rl."""\n'
    yield f"{library}/jobs/__init__.py", ""
    for path in _needed():
        yield f"{library}/{path}", (_SOURCE / path).read_text("utf-8")
    folders = {folder.name: folder for folder in (cards.home() / known for known in tasks.names())}
    if family not in folders:
        folders[Path(family).name] = Path(family)
    for known, folder in folders.items():
        for part in ("task.toml", "family.py"):
            yield f"{library}/families/{known}/{part}", (folder / part).read_text("utf-8")


@functools.cache
def _needed() -> tuple[str, ...]:
    """Paths of `_GRADING` and of every module that they import, directly or not."""
    found: set[str] = set()
    todo = [f"nested_rl.{name}" for name in _GRADING]
    while todo:
        path = todo.pop().removeprefix("nested_rl.").replace(".", "/") + ".py"
        if path in found or not (_SOURCE / path).is_file():  # a name inside a module
            continue
        found.add(path)
        for node in ast.walk(ast.parse((_SOURCE / path).read_text("utf-8"))):
            todo += [name for name in _imported(node, members=True) if name.startswith("nested_rl.")]
    return tuple(sorted(found))
