"""The versions that full-scale jobs are written for. prime-rl keeps no aliases: another version is another set of key names."""

from __future__ import annotations

from typing import Final

COMMIT: Final = "559b44772e471d1538537b8805cc77f3824a5e64"
"""prime-rl, 2026-08-21."""
IMAGE: Final = f"ghcr.io/primeintellect-ai/prime-rl:commit-{COMMIT[:9]}"
"""A tag says which image is meant; its digest is read from the machine before the first job, and recorded."""
VERIFIERS: Final = "0.3.1.dev62"
"""The version that this commit pins; the extra `prime-rl` installs the same, so that a probe sees what a machine runs."""
PYTHON: Final = "3.12"
"""What the image runs; packages of agents are written for it."""
