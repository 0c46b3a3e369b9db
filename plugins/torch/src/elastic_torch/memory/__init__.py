"""Snapshots of a training state in memory that the agents hold. Nothing is imported here."""
