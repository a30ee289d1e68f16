"""The versions that full-scale jobs are written for. prime-rl keeps no aliases: another version is another set of key names.

A machine gets no job with another version of verifiers, nor with a checkout of prime-rl at another commit. Of an installation that is
no checkout (as in the image) the commit cannot be seen, and the image is whichever was started: what is found is in every job's log.
"""

from __future__ import annotations

from typing import Final

COMMIT: Final = "559b44772e471d1538537b8805cc77f3824a5e64"
"""prime-rl, 2026-08-21."""
IMAGE: Final = f"ghcr.io/primeintellect-ai/prime-rl:commit-{COMMIT[:9]}"
"""What to start a machine from. Its digest is logged where whoever starts the machine has written it down."""
VERIFIERS: Final = "0.3.1.dev62"
"""The version that this commit pins; the extra `prime-rl` installs the same, so that a probe sees what a machine runs."""
