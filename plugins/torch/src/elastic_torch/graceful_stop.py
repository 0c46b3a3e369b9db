"""Graceful stops, for a training loop; all of it is core's (``elastic_core.worker.graceful_stop``), and none of it
needs torch.
"""

from __future__ import annotations

from elastic_core.worker.graceful_stop import should_checkpoint

__all__ = ["should_checkpoint"]
