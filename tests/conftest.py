"""What every test shares: hypothesis does not measure time, since a busy machine is no failure; `make coverage` sees the sandbox too."""

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("calm"), max_examples=5_000, print_blob=True)
settings.load_profile("calm")

if "COVERAGE_PROCESS_CONFIG" in os.environ:
    from nested_rl.jobs import nursery

    nursery._ENVIRONMENT["COVERAGE_PROCESS_CONFIG"] = os.environ["COVERAGE_PROCESS_CONFIG"]


def pytest_configure():
    """A shell has SIGINT ignored by what it starts in the background, and by all below that. Here Ctrl-C is tried."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
