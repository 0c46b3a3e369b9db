"""The memory tier: snapshots of a training state in memory files that the agents hold. Nothing is imported here.

``tier`` is what ``TrainState`` talks to, ``sharded`` the same for states in parts (FSDP2). ``snapshot`` is one snapshot
in shared memory, ``buffers`` are the files of a worker, which the agent keeps for the next one. ``notes`` are short
texts that it keeps beside them. ``rescue`` reads snapshots that agents have written to a directory after a job had
failed.

``agent`` is the agent's plugin, and ``rescue_decision`` decides what it writes. ``snapshot_format`` is the format of
memory files, and ``rescue_files`` writes and lists the files of such a directory. None of these four imports torch.
"""
