"""The errors of checkpoints on disk, in words for people."""

from __future__ import annotations

from elastic_core.errors import ElasticError


class CheckpointError(ElasticError):
    """The base of what the disk tier raises."""


class CheckpointSaveError(CheckpointError):
    """A checkpoint was not saved, a full disk for example; the earlier ones are still there. Training can go on."""


class CheckpointRefusedError(CheckpointError):
    """Another saver has the directory: a later round, another job, or another process at this very step. Names it.

    Unlike a :class:`CheckpointSaveError` it will not get better by itself.
    """


class CheckpointLoadError(CheckpointError):
    """An intact checkpoint could not be loaded: into other shapes or names, or with no room for what is missing."""


class CheckpointUnreadableError(CheckpointLoadError):
    """There are checkpoints, and none of them can be loaded. They are all where they were."""
