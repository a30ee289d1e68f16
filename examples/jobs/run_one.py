"""One full-scale job on this computer's GPUs, end to end: checked, scored untrained, trained by prime-rl, scored again.

    python examples/jobs/run_one.py examples/jobs/calc_chain [items]

It needs an NVIDIA driver, `rl` of the pinned prime-rl on the PATH (its image has it), and the base's weights: in a folder that
NESTED_RL_BASES names, in the Hugging Face cache, or downloaded now. vLLM is taken from where `rl` is.
"""

import asyncio
import secrets
import shutil
import sys
from pathlib import Path

import nested_rl as nrl
from nested_rl.cli.jobs import read
from nested_rl.interfaces import Scorer
from nested_rl.jobs.folder import digest
from nested_rl.types import Draft, Job, JobSpec


async def run(folder: Path, items: int, trainer: nrl.inner.PrimeRLTrainer, scorer: Scorer) -> int:
    (family,) = nrl.tasks.load(folder.name.removesuffix("_taskset"), scale="full")
    draft = Draft(task=next(family.tasks()), files=read(folder))
    compute = nrl.compute.LocalCompute(max_machines=1)
    trainer.offered(compute.offers())
    try:
        verdict = await trainer.validate(draft)
        for problem in verdict.problems:
            print(f"{problem.where}: {problem.message}\n    {problem.hint}")
        if not verdict.ok:
            return 1
        asked = family.eval_set(draft.task, "hidden", salt=secrets.token_hex(8), n=items)
        need, base = trainer.need(draft), verdict.base or ""
        spec = JobSpec(
            task=draft.task, files=draft.files, digest=digest(draft.files), base=base, scale="full", need=need
        )
        async with compute.machine(need) as machine:
            before = await scorer.score(base, asked, machine)
            print(f"untrained {base}: {before.value:.3f} +- {before.stderr:.3f} of {before.n} items", flush=True)
            await scorer.close()  # training takes the whole memory of the GPU
            checkpoint = await trainer.train(Job(id="one", key="one", spec=spec, delivery=1), machine)
            curve = " ".join(f"{reward:.2f}" for reward in checkpoint.curve)
            print(f"trained ({checkpoint.kind}) in {checkpoint.seconds:.0f} s; reward by step: {curve}", flush=True)
            after = await scorer.score(checkpoint, asked, machine)
            print(
                f"trained: {after.value:.3f} +- {after.stderr:.3f}; {after.truncated} answers were cut off", flush=True
            )
    finally:
        for part in (scorer, trainer, compute):
            await part.close()
    return 0


if __name__ == "__main__":
    beside = Path(shutil.which("rl") or "rl").with_name("python")
    parts = nrl.inner.PrimeRLTrainer(), nrl.scorers.VLLMScorer(engine={"python": str(beside)})
    sys.exit(asyncio.run(run(Path(sys.argv[1]).resolve(), int((*sys.argv, 256)[2]), *parts)))
