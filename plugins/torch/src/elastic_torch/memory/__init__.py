"""The memory tier: snapshots of a training state in memory files that the agents hold. Nothing is imported here."""
