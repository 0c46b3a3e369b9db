"""Sharded states (FSDP2, DTensor) in the memory tier: each rank keeps its part, and another node a replica of it.

General layout: ``plan`` is pure: which part of a tensor a rank has, which snapshot all go on from, who gives what to
whom, who keeps whose replica. ``dtensors`` knows DTensors, and gets the parts that a rank needs from wherever they
are. ``replicator`` has the snapshots that a rank keeps for others, and the thread that sends them. ``tier`` is what
``TrainState`` talks to, and knows how checkpoints on disk are laid out.
"""
