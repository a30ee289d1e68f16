"""Everything that depends on the key names of the pinned prime-rl, in one place.

`allowed` what a job may set; `denied` what not, and why; `reading` looks at a job's [prime_rl] table; `fits` at how values go
together; `render` writes the one TOML that prime-rl reads. prime-rl keeps no aliases, so another pin means another look at these.
"""
