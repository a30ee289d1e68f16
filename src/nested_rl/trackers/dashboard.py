"""A tracker for dashboards that speak `init`, `log`, `finish`: trackio (local, or a Space) and wandb."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from nested_rl.errors import MissingExtra, SettingsError, UnknownName
from nested_rl.interfaces import Tracker
from nested_rl.types import Episode, Metrics

PACKAGES: Final = ("trackio", "wandb")
_OURS = ("project", "run", "config")
_TAKEN = ("name", "id", "resume")
"""Arguments of `init` that `run` stands for."""


class DashboardTracker(Tracker):
    """The metrics of every step, sent to a project of trackio or wandb. Episodes stay in the run directory.

    `run` names the run there; the same name goes on with the same run, as a resumed run should. Without it each process is a new
    one, under a name the package makes up. `config` is shown beside the curves. Further settings go to the package's `init`
    (`space_id` of trackio; `entity`, `mode`, `dir` of wandb …).

    Raises MissingExtra without the package, UnknownName for a setting that its `init` does not take, and SettingsError when wandb has
    no key: in the middle of a run nobody should be asked for one. Nothing is sent before the first step.

    >>> tracker = DashboardTracker("trackio", project="pilots", run="pilot-7")           # doctest: +SKIP
    >>> nrl.Experiment(trackers=[tracker]).run(steps=25, out="runs/pilot-7")             # doctest: +SKIP
    """

    def __init__(
        self,
        package: Literal["trackio", "wandb"],
        *,
        project: str = "nested_rl",
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self._package = _imported(package)
        _check(self._package, package, settings)
        self._asked: dict[str, Any] = {"project": project, "config": dict(config or {}), **settings}
        if run is not None:
            self._asked |= {"name": run, "resume": "allow"}
        if package == "wandb":
            # What the program prints is its own business, and the live table's.
            self._asked["settings"] = {"console": "off", **dict(settings.get("settings") or {})}
            if run is not None:
                self._asked["id"] = run
        self._run: Any = None
        self._closed = False

    def metrics(self, step: int, values: Metrics) -> None:
        if self._closed:
            return
        if self._run is None:
            self._run = self._package.init(**self._asked)
        self._run.log({key: v for key, v in values.items() if key != "step" and math.isfinite(v)}, step=step)

    def episode(self, step: int, episode: Episode) -> None:
        """Nothing: pages and files of episodes are in the run directory, beside everything they belong to."""

    def close(self) -> None:
        self._closed = True
        run, self._run = self._run, None
        if run is not None:
            run.finish()


def trackio(**settings: Any) -> DashboardTracker:
    """`name = "trackio"` in a run file; settings as of DashboardTracker."""
    return DashboardTracker("trackio", **settings)


def wandb(**settings: Any) -> DashboardTracker:
    """`name = "wandb"` in a run file; settings as of DashboardTracker."""
    return DashboardTracker("wandb", **settings)


def _imported(package: str) -> Any:
    if package not in PACKAGES:
        raise UnknownName("dashboard", package, PACKAGES)
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(f"DashboardTracker({package!r})", package) from error


def _check(package: Any, name: str, settings: Mapping[str, Any]) -> None:
    """What would only be found out when the first step is done."""
    takes = [key for key in inspect.signature(package.init).parameters if key not in _TAKEN]
    for key in settings:
        if key not in takes:
            raise UnknownName(f"setting (of {name}.init)", key, [*_OURS, *takes])
    if name == "wandb":
        mode = settings.get("mode") or package.setup().settings.mode
        if mode not in ("offline", "disabled") and not package.login(prompt=False):
            raise SettingsError(
                "wandb has no key: run `wandb login`, set WANDB_API_KEY, or pass mode='offline' and `wandb sync` later"
            )
