"""The sections of docs/performance.md, a module each: how a result is shown, whether its target is met, and what limits it next."""

from collections.abc import Sequence

from pages import engine, job, outer, probe, queue_rates, schedule, scoring, transfer
from pages.section import Section

SECTIONS: Sequence[Section] = tuple(
    module.SECTION for module in (engine, job, probe, outer, queue_rates, schedule, transfer, scoring)
)
