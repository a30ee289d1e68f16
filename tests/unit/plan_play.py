"""Settings for plans that a person can reckon by hand: nothing varies, nothing fails, jobs of 100 s."""

from nested_rl.compute.provider import Candidate
from nested_rl.loop import Schedule
from nested_rl.plan import Assumptions, Guess, Rents, Setting

A40 = Candidate(gpu="NVIDIA A40", cloud="secure", gpu_memory_gib=48)
R4090 = Candidate(gpu="NVIDIA GeForce RTX 4090", cloud="community", gpu_memory_gib=24)
PLAIN = {
    "job_s": 100.0,
    "job_spread": 0.0,
    "job_failure": 0.0,
    "baseline_s": 0.0,
    "tries": 1.0,
    "valid": 1.0,
    "distinct": 1.0,
    "probe_s": 0.0,
    "turns": 0.0,
    "turn_s": 0.0,
    "update_s": 10.0,
}
CALM = {"boot_s": 60.0, "preflight_s": 30.0, "boot_failure": 0.0, "refused": 0.0, "lost_per_hour": 0.0}


def told(**more):
    return Assumptions.stated("nano").with_values(**{**PLAIN, **more})


def told_pods(**more):
    prices = {A40.name: 0.36, R4090.name: 0.72}
    return Assumptions.stated("full").with_values(**{**PLAIN, **CALM, "usd_per_hour": prices, **more})


def setting(*, machines=1, rents=None, usd_per_hour=0.0, job_timeout_s=3600.0, **schedule):
    asked = {"steps": 3, "groups_per_step": 1, "group_size": 4, "max_steps_off_policy": 0, "eval_every": 0, **schedule}
    return Setting(
        schedule=Schedule(**asked),
        families=("one",),
        bases=("base",),
        scale="nano" if rents is None else "full",
        machines=machines,
        rents=rents,
        usd_per_hour=usd_per_hour,
        job_timeout_s=job_timeout_s,
    )


def pods(*candidates, **more):
    return setting(rents=Rents(candidates=candidates or (A40,)), order="ready", **more)


def fixed(value, unit="x"):
    return Guess.of(value, unit, "given")
