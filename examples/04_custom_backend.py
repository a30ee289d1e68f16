"""Your own compute backend, by composition: announce every machine that is held, and for how long.

    python examples/04_custom_backend.py [steps]

A backend has four methods; nothing needs to be inherited. `nested_rl.testing` has a conformance suite for yours.
"""

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Sequence

import nested_rl as nrl
from nested_rl.interfaces import ComputeBackend, Machine
from nested_rl.types import Need


class Announced:
    """Another backend's machines, with a line printed for each hold."""

    def __init__(self, backend: ComputeBackend) -> None:
        self.backend = backend
        self.max_machines = backend.max_machines

    def offers(self) -> Sequence[Need]:
        return self.backend.offers()

    @contextlib.asynccontextmanager
    async def machine(self, need: Need) -> AsyncIterator[Machine]:
        async with self.backend.machine(need) as machine:
            start_s = time.monotonic()
            yield machine
            print(f"held {machine.id} for {time.monotonic() - start_s:.2f} s")

    async def close(self) -> None:
        await self.backend.close()


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1

compute = Announced(nrl.compute.LocalCompute(max_machines=2))
nrl.Experiment(compute=compute).run(steps=steps, groups_per_step=2, eval_every=0, out="runs/example-backend")
