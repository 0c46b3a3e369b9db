"""The training state: ``train_state`` has the public class. Nothing is imported here.

* ``components``: the parts that are the same on all ranks. ``per_rank``: the part that differs. ``rng``: random
  generators. ``accumulation``: the batches of one step. ``gradient_order``: the order of DDP's gradients.
* ``state_tree``: states as JSON and tensors. ``host_memory``: copies of them in host memory. ``digests``: what differs
  between ranks that should be equal.
* ``state_choice``: which state all ranks go on from, a pure function. ``state_exchange``: bytes and JSON between ranks.
* ``checkpoints``: when to save to disk, and whether to go on from there. ``disk_tier``: the interface of the disk tier.
"""
