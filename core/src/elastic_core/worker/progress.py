"""``elastic.report``: a worker reports how far it has come, for those who want to say more than their output does."""

from __future__ import annotations

import math
import operator
import os
import time
from typing import SupportsFloat, SupportsIndex

from elastic_core.progress import check_report
from elastic_core.worker.channel import PROGRESS, open_channel, send

PERIOD = 0.1  # seconds between two reports that are sent

_process = 0  # the first that reports; a starter that imports this module does not
_sent_at = -math.inf


def report(
    *,
    step: SupportsIndex | None = None,
    loss: SupportsFloat | None = None,
    samples: SupportsIndex | None = None,
    epoch: SupportsFloat | None = None,
) -> bool:
    """Report how far this worker has come, and return whether that was sent; call it as often as you like.

    It takes microseconds and never waits. Nothing is sent within 0.1 s of the last report, where no agent of ``elastic
    run`` is there, and by processes that the worker has forked. ``TrainState.commit()`` reports its step itself.

    Args:
        step: How many steps have been taken, counted over all of the training.
        loss: The loss of this step; a tensor with one element too, which is read from its device only if it is sent.
        samples: How many samples have been trained on.
        epoch: The epoch, also a part of one.

    Raises:
        ValueError: A value is no number, or out of range, or there is none.
    """
    global _process, _sent_at
    now, _process = time.monotonic(), _process or os.getpid()
    if now - _sent_at < PERIOD or os.getpid() != _process:
        return False
    try:
        values = {
            "step": None if step is None else operator.index(step),
            "loss": None if loss is None else float(loss),
            "samples": None if samples is None else operator.index(samples),
            "epoch": None if epoch is None else float(epoch),
        }
        check_report(values)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ValueError(f"report(step={step!r}, samples={samples!r}, epoch={epoch!r}): {exc}.") from None
    packet = {"type": PROGRESS, **{name: value for name, value in values.items() if value is not None}}
    with open_channel() as agent:
        if agent is None or not send(agent, packet):
            return False
    _sent_at = now
    return True
