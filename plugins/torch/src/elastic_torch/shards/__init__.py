"""Sharded states (FSDP2, DTensor) in the memory tier: each rank keeps its part, and another node a replica of it.

General layout: ``boxes`` and ``plan`` are pure: which part of a tensor a rank has, which snapshot all go on from, who
gives what to whom, who keeps whose replica. ``tensors`` knows DTensors, ``wire`` moves numbers and bytes over gloo,
``pool`` has a rank's own snapshots, ``replicas`` those that it keeps for others, ``replicator`` the thread that sends
them. ``bringing`` gets the parts that a rank needs from wherever they are, ``formats`` is how checkpoints on disk are
laid out, and ``memory`` is what ``TrainState`` talks to.
"""
