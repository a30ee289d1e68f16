"""What is printed at the end, on a narrow terminal."""

import sys

import pytest

from nested_rl.wrapping import fitted

SAID = (
    "Reward went from 0.31 [0.25, 0.37] to 0.62 [0.55, 0.69] (mean of the last 5 steps, 95 % interval) in 25 steps.\n\n"
    f"Report: {'runs/' * 20}report-of-this.html"
)


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_lines_end_between_words(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = fitted(SAID).split("\n")
    assert " ".join(line for line in lines if line) == SAID.replace("\n\n", " ")
    assert "" in lines
    assert all(len(line) <= columns or " " not in line for line in lines)


def test_elsewhere_it_is_as_it_was():
    assert fitted(SAID) == SAID
