"""Parts by name, and functions of the user's: found, built, or refused in a sentence that helps."""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import Literal

import pytest
from attrs import field, frozen

from nested_rl import parts
from nested_rl.errors import MissingExtra, SettingsError, UnknownName
from nested_rl.types import Need

MODULE = sys.modules[__name__]


class Oven:
    def __init__(self, heat: int = 200, *, trays: tuple = (), door: str):
        self.heat, self.trays, self.door = heat, trays, door
        if heat > 300:
            raise ValueError("heat must be at most 300")


@frozen(kw_only=True)
class Tray:
    width: int
    need: Need = field(factory=Need)


class Kitchen:
    def __init__(
        self,
        trays: "Sequence[str | Tray]" = (),
        *,
        tray: "Tray | None" = None,
        door: "Literal['left', 'right'] | Tray" = "left",
        heat: "float | None" = None,
        labels: "Mapping[str, str] | None" = None,
        clock: "Clock | None" = None,  # noqa: F821  known to type checkers only
    ) -> None:
        self.trays, self.tray, self.heat, self.labels = trays, tray, heat, labels


class Loose:
    def __init__(self, **anything):
        self.anything = anything


def missing(**_):
    raise MissingExtra("the oven", "baking")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    def entry_points(*, group):
        here = f"{__name__}:"
        found = {
            "kitchen": f"{here}Kitchen",
            "oven": f"{here}Oven",
            "loose": f"{here}Loose",
            "missing": f"{here}missing",
            "gone": f"{here}Gone",
        }
        return [EntryPoint(name, value, group) for name, value in found.items()]

    monkeypatch.setattr(parts, "entry_points", entry_points)


def test_names_and_a_part_with_its_settings():
    assert parts.names("compute") == ("gone", "kitchen", "loose", "missing", "oven")
    oven = parts.build("compute", {"name": "oven", "heat": 250, "door": "left", "trays": [1, [2, 3]]})
    assert (oven.heat, oven.door, oven.trays) == (250, "left", (1, (2, 3)))
    assert parts.build("compute", {"name": "loose", "any": 1}).anything == {"any": 1}


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"name": "ovem"}, UnknownName, "unknown compute 'ovem'; did you mean 'oven'"),
        ({"name": "oven", "door": "l", "heet": 1}, UnknownName, "did you mean 'heat'"),
        ({"name": "oven"}, SettingsError, r"\[compute\] oven also needs door"),
        ({"name": "oven", "door": "l", "heat": 301}, SettingsError, "at most 300"),
        ({"door": "l"}, SettingsError, r"\[compute\] needs a name, one of: gone, kitchen, loose, missing, oven"),
        ({"name": "gone"}, SettingsError, "cannot be loaded"),
        ({"name": "missing"}, MissingExtra, r"pip install 'nested-rl\[baking\]'"),
    ],
)
def test_what_is_wrong_is_said(settings, error, words):
    with pytest.raises(error, match=words):
        parts.build("compute", settings)


def test_tables_become_the_values_that_arguments_are_annotated_with():
    told = {"trays": ["a", {"width": 3, "need": {"gpus": 2}}], "tray": {"width": 1}, "heat": 5, "labels": {"a": "b"}}
    made = parts.build("compute", {"name": "kitchen", **told})
    assert made.trays == ("a", Tray(width=3, need=Need(gpus=2)))
    assert (made.tray, made.heat, made.labels) == (Tray(width=1), 5, {"a": "b"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trays": [{"wdth": 3}]}, "unknown key .in Tray. 'wdth'; did you mean 'width'"),
        ({"trays": [{"width": 3, "need": {"gpu": 1}}]}, "did you mean 'gpus'"),
        ({"tray": {"width": "x"}}, r"\[compute\] kitchen: tray: width: expected a whole number"),
        ({"trays": ["a", 5]}, r"kitchen: trays\[1\]: expected text or a list or a table .Tray., got 5"),
        ({"heat": "hot"}, "heat: expected a number, got 'hot'"),
        ({"heat": [1]}, "heat: expected a number"),
        ({"heat": True}, "heat: expected a number, got True"),
        ({"door": "lefty"}, "door: expected a table .Tray. or 'left' or 'right', got 'lefty'"),
    ],
)
def test_a_value_of_another_kind_is_one_sentence(settings, words):
    with pytest.raises(SettingsError, match=words):
        parts.build("compute", {"name": "kitchen", **settings})


def test_an_unknown_kind():
    with pytest.raises(UnknownName, match="did you mean 'trainer'"):
        parts.names("trainr")


def test_every_registered_part_of_ours_is_named_in_pyproject(monkeypatch):
    monkeypatch.undo()
    assert "local" in parts.names("compute")
    assert {"sqlite", "memory"} <= set(parts.names("queue"))


def test_a_function_from_a_file_and_from_a_module(tmp_path):
    (tmp_path / "types.py").write_text("import types\ndef thrifty(outcome):\n    return 0.5\n")
    assert parts.function("types.py:thrifty", beside=tmp_path)(None) == 0.5
    assert parts.function("math:sqrt", beside=tmp_path)(4) == 2.0
    assert sys.modules["types"].__name__ == "types"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("mine.py", "write FILE.py:NAME or MODULE:NAME"),
        ("none.py:f", "no such file"),
        ("mine.py:thrify", "did you mean 'thrifty'"),
        ("broken.py:f", "broken.py cannot be loaded: ZeroDivisionError"),
        ("no_such_module_here:f", "cannot be imported"),
    ],
)
def test_a_function_that_is_not_there(tmp_path, where, words):
    (tmp_path / "mine.py").write_text("def thrifty(outcome):\n    return 0.5\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(SettingsError, match=words):
        parts.function(where, beside=tmp_path)
