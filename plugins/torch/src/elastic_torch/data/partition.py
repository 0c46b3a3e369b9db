"""Which part of an epoch is whose, in integers alone: no torch, no state, nothing random.

An epoch is an order of its samples (``permutation.py``), and training moves one *cursor* along it: the number of
samples that committed steps have used. A step takes the next ``global_batch_size`` samples, however many workers there
are, and they share them out. So a step's samples depend on the cursor and on nothing else, and a cursor means the same
to any number of workers.
"""

from __future__ import annotations


def step_size(cursor: int, *, length: int, global_batch_size: int, drop_last: bool) -> int:
    """Return the number of samples of the step at ``cursor``; 0 where the epoch is over.

    The tail, what is left for the last step when the batch size does not divide the epoch, is a step of its own and
    smaller, or with ``drop_last`` left out.

    Args:
        cursor: Samples of the epoch that are used up, from 0 to ``length``.
        length: Samples in the epoch.
        global_batch_size: Samples in a full step, of all workers together.
        drop_last: Whether the tail is left out.
    """
    left = length - cursor
    return 0 if drop_last and left < global_batch_size else min(left, global_batch_size)


def steps_left(cursor: int, *, length: int, global_batch_size: int, drop_last: bool) -> int:
    """Return the number of steps that follow in the epoch; arguments as for :func:`step_size`."""
    whole, tail = divmod(length - cursor, global_batch_size)
    return whole + (tail > 0 and not drop_last)


def share(start: int, stop: int, *, rank: int, world_size: int) -> range:
    """Return the places of the epoch's order that one rank takes of a step's ``range(start, stop)``.

    Shares are contiguous, in order of rank, and differ by one sample at most: the first ones are the larger ones. Where
    a step has fewer samples than there are ranks, the last ones take none.
    """
    each, more = divmod(stop - start, world_size)
    first = start + rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def loss_weight(count: int, total: int, world_size: int) -> float:
    """Return what to multiply the mean loss of a rank's ``count`` samples by, so that averaging gradients is right.

    DDP and FSDP average over the W ranks: the optimizer sees g = 1/W · Σ_r ∇(w_r · L_r), with L_r the mean of rank r's
    n_r losses. The gradient of all n samples in one process is ∇ 1/n · Σ_r n_r · L_r. They are the same for

        w_r = W · n_r / n

    which is 1 for even shares, and 0 for a rank without a sample. (Without it, a sample in a smaller share counts
    for more.) For losses that are summed over n_r, the weight is W / n. The counts may be of anything that the loss
    is a mean of, for instance of tokens.

    Args:
        count: Samples in this rank's share, n_r.
        total: Samples in the step, of all ranks, n.
        world_size: Ranks, W.
    """
    return world_size * count / total
