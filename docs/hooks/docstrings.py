"""What the reference makes of the package: attrs classes have their arguments, and doctests are code without their flags."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import attrs
import griffe

FLAG = re.compile(r"\s*# doctest: \+\w+\s*$")


class Attrs(griffe.Extension):
    """The arguments of an attrs class, which nothing in its text spells out."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if not cls.path.startswith("nested_rl."):
            return
        module, _, name = cls.path.rpartition(".")
        try:
            known = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # inside of another class, or of a stack that is not here
            return
        if not attrs.has(known) or "__init__" not in known.__dict__:
            return
        taken = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        taken += [_parameter(one) for one in inspect.signature(known).parameters.values()]
        init = griffe.Function("__init__", parameters=griffe.Parameters(*taken), parent=cls)
        cls.set_member("__init__", init)


class Doctests(griffe.Extension):
    """`>>>` outside of a section of examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every doctest in a fence; a blank line ends one."""
    made: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            made.append("```pycon")
            inside = True
        elif inside and not line.strip():
            made.append("```")
            inside = False
        made.append(FLAG.sub("", line) if inside else line)
    return "\n".join([*made, "```"] if inside else made)


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kinds = {
        one.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
        one.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    }
    annotation = None if one.annotation is one.empty else _said(one.annotation)
    default = None if one.default is one.empty else ("..." if one.default is attrs.NOTHING else repr(one.default))
    return griffe.Parameter(one.name, annotation=annotation, kind=kinds[one.kind], default=default)


def _said(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
