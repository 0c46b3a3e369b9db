"""Graceful stops, for a training loop; all of it is core's (``elastic_core.notices``), and none of it needs torch."""

from __future__ import annotations

from elastic_core.notices import should_checkpoint

__all__ = ["should_checkpoint"]
