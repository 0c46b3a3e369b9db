"""Elastic inside a Slurm allocation: ``srun elastic run train.py`` needs no other flag.

* ``plugin``: the hook that core calls inside a Slurm job. It returns the flags that follow from the allocation, and
  refuses commands that cannot be meant.
* ``allocation``: what Slurm's variables say of the job, the step and the node. No ``scontrol`` is needed. Pure.
* ``shared_directory``: whether a directory is on a file system that all nodes see, by the type of its mount.
"""

__version__ = "0.1.0"
