"""The examples in docstrings are true: every module that has some is run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import nested_rl
from nested_rl.errors import MissingExtra

SOURCE = Path(nested_rl.__file__).parent
FLAGS = doctest.REPORT_ONLY_FIRST_FAILURE


def with_examples() -> list[str]:
    """Names of the modules that show a prompt."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(SOURCE)
        if ">>> " in path.read_text(encoding="utf-8") and inside.parts[0] != "families":
            parts = inside.with_suffix("").parts
            found.append(".".join(["nested_rl", *parts]).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", with_examples())
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    try:
        module = importlib.import_module(name)
    except MissingExtra as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    assert any(test.examples for test in doctest.DocTestFinder().find(module)), "a prompt that is in no docstring"
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def test_a_wrong_example_would_be_found():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(wrong, out=lambda text: None).failed == 1
