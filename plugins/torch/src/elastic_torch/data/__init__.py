"""The elastic sampler, and the audit of the samples that were used. Nothing is imported here: the audit needs no torch.

* ``sampler``: the sampler, also step by step.
  ``permutation``: the order of an epoch.
  ``partition``: which rank takes which part of it. ``loaders``: checks of the loader that draws the batches.
  ``sharders``: what shards such a loader once more. ``step_counts``: what the steps that were drawn and committed say.
* ``seeded_dataset``: a dataset whose random numbers belong to the sample.
* ``audit``: writes which samples each step took. ``audit_command``: what such a log proves, ``elastic audit-data``.
"""
