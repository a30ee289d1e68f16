"""What runs on the machine: one file for any Python from 3.10 on, standard library only (see launch.py, which packs it).

It unpacks the job, trains under watch, ends everything that is left, and takes the weights out. The job's own processes share the
machine with it, so nothing that they can write decides anything except what they get themselves: files are opened without
following links and read within bounds, and the answer goes through a pipe that they cannot open.
"""
