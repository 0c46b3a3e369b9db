"""The training state: ``train_state`` has the public class. Nothing is imported here.

* ``components``: the parts that are the same on all ranks, their comparison, and those that differ.
  ``gradient_order``: the order of DDP's gradients.
* ``state_tree``: states as JSON and tensors. ``host_memory``: copies of them in host memory. ``state_exchange``: bytes
  and JSON between ranks.
* ``checkpoints``: the interface of the disk tier, when to save there, and whether to go on from there.
"""
