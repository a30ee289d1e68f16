"""How long things may take in a pool, and when a pod is worn out."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Terms:
    """Every figure in seconds, but for `max_jobs`.

    `ttl_s` is a pod's absolute deadline, told in its name and enforced by the pod itself; it takes no job after `max_age_s`, so
    that a job has the time between the two.
    """

    look_s: float = 5.0
    price_s: float = 600.0
    find_s: float = 60.0
    boot_s: float = 900.0
    ssh_s: float = 300.0
    connect_s: float = 60.0
    preflight_s: float = 300.0
    idle_s: float = 300.0
    hang_up_s: float = 15.0
    max_age_s: float = 8 * 3600.0
    max_jobs: int = 200
    ttl_s: float = 12 * 3600.0
    reserve_s: float = 3600.0
    alarm_s: float = 300.0
    close_s: float = 900.0
