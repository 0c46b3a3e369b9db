"""The memory tier: snapshots of a training state in memory files that the agents hold. Nothing is imported here.

``tier`` is what ``TrainState`` talks to, and chooses the snapshot that all go on from; ``sharded`` is the same for
states in parts (FSDP2). ``buffers`` has the memory files of a worker, a snapshot or a short note in each, which the
agent keeps for the next one. ``rescue`` reads snapshots that agents have written to a directory after a job had failed.

``agent`` is the agent's plugin, which keeps the files (``fd_store``), and ``rescue_files`` decides what it writes, and
writes and lists the files of such a directory. ``snapshot_format`` is the format of memory files. None of these four
imports torch.
"""
