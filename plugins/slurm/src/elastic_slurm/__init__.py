"""Elastic inside a Slurm allocation: ``srun elastic run train.py`` needs no other flag.

* ``plugin``: the hook that core calls inside a Slurm job.
* ``defaults``: which flags follow from the allocation, and which commands are refused. Pure.
* ``allocation``: what Slurm's variables say of the job, the step and the node. Pure.
* ``node_list``: expands Slurm's compressed lists, so that no ``scontrol`` is needed. Pure.
* ``shared_directory``: whether a directory is on a file system that all nodes see, by the type of its mount.
"""

from __future__ import annotations

__version__ = "0.1.0"
