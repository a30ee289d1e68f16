"""`models build`: make the shipped nano models again, from the task families and a seed."""

from __future__ import annotations

from cyclopts import App

app = App(name="models", help="The shipped nano models.")
