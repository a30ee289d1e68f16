"""`nested-rl`: the command line. Each command is a few lines over what a script can do as well.

What goes wrong ends in one sentence on stderr and an exit code that tells its kind: that of the error (see errors.py), 70 for
what nobody foresaw, 130 after Ctrl-C, 143 after SIGTERM. A background task that died is shown with its traceback.
"""
# ruff: noqa: T201  printing is what a command is for

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from nested_rl import __version__, redact, sync
from nested_rl.cli import (
    bench,
    doctor,
    evaluating,
    exporting,
    jobs,
    machines,
    models,
    planning,
    publishing,
    replaying,
    reporting,
    retro,
    running,
    tasks,
    watching,
)
from nested_rl.errors import NestedRLError, SupervisionError

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
    planning.plan,
    watching.watch,
    evaluating.evaluate,
    reporting.report,
    replaying.replay,
    retro.retro,
    exporting.export,
    publishing.publish,
    bench.bench_gpus,
    doctor.doctor,
):
    app.command(_command)
for _group in (tasks.app, jobs.app, machines.app, models.app):
    app.command(_group)
for _place, _name in enumerate(
    (
        "pilot",
        "run",
        "plan",
        "watch",
        "evaluate",
        "report",
        "replay",
        "retro",
        "export",
        "publish",
        "tasks",
        "jobs",
        "machines",
        "bench-gpus",
        "models",
        "doctor",
    )
):
    app[_name].sort_key = _place  # help lists them in the order in which they are first needed


UNFORESEEN = 70
"""EX_SOFTWARE of sysexits.h: an exception that is not one of errors.py, a bug of ours or of a part of yours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    for handler in logging.getLogger().handlers:  # records of other packages too
        handler.addFilter(redact.FILTER)
    with sync.terminable():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
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
    except NestedRLError as error:
        if error.exit_code == SupervisionError.exit_code and error.__cause__ is not None:
            _trace(error.__cause__)
        return _say("\n".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code)
    except KeyboardInterrupt as stopped:
        code = 143 if isinstance(stopped, sync.Terminated) else 130
        return _say("stopped; run the same command again to resume", code)
    except BrokenPipeError:
        from nested_rl.report.live import nobody_reads

        nobody_reads()  # or Python would complain once more while it shuts down
        return 1
    except Exception as error:  # noqa: BLE001  a bug, of ours or of a part of yours: all that is known of it, without secrets
        _trace(error)
        return UNFORESEEN
    return code if isinstance(code, int) else 0


def _trace(error: BaseException) -> None:
    print(redact.text("".join(traceback.format_exception(error))), file=sys.stderr, end="")


def _say(sentence: str, code: int) -> int:
    print(redact.text(f"nested-rl: {sentence}"), file=sys.stderr)
    return code
