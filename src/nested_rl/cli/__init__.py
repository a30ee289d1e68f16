"""`nested-rl`: the command line. Each command is a few lines over what a script can do as well.

What goes wrong ends in one sentence on stderr: exit code 2 for wrong use, 1 for everything else, 130 after Ctrl-C,
143 after SIGTERM.
"""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from nested_rl import __version__, redact, sync
from nested_rl.cli import doctor, evaluating, exporting, jobs, models, replaying, reporting, running, tasks, watching
from nested_rl.errors import NestedRLError, SettingsError

app = App(
    name="nested-rl",
    help="An outer RL loop trains an agent whose action is to write an RL training job.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
    help_flags=["--help", "-h"],
    suppress_keyboard_interrupt=False,  # `main` says how to go on
)
for _command in (
    running.pilot,
    running.run,
    watching.watch,
    evaluating.evaluate,
    reporting.report,
    replaying.replay,
    exporting.export,
    doctor.doctor,
):
    app.command(_command)
for _group in (tasks.app, jobs.app, models.app):
    app.command(_group)
for _place, _name in enumerate(
    ("pilot", "run", "watch", "evaluate", "report", "replay", "export", "tasks", "jobs", "models", "doctor")
):
    app[_name].sort_key = _place  # help lists them in the order in which they are first needed


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for handler in logging.getLogger().handlers:  # records of other packages too
        handler.addFilter(redact.FILTER)
    try:
        code = app(
            sys.argv[1:] if argv is None else list(argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _say(f"{error} (nested-rl --help lists what there is)", 2)
    except SettingsError as error:
        return _say(str(error), 2)
    except NestedRLError as error:
        return _say(str(error), 1)
    except KeyboardInterrupt as stopped:
        code = 143 if isinstance(stopped, sync.Terminated) else 130
        return _say("stopped; run the same command again to resume", code)
    except BrokenPipeError:
        from nested_rl.report.live import nobody_reads

        nobody_reads()  # or Python would complain once more while it shuts down
        return 1
    except Exception:  # noqa: BLE001  a bug, of ours or of a part of yours: all that is known of it, without secrets
        print(redact.text(traceback.format_exc()), file=sys.stderr, end="")
        return 1
    return code if isinstance(code, int) else 0


def _say(sentence: str, code: int) -> int:
    print(redact.text(f"nested-rl: {sentence}"), file=sys.stderr)
    return code
