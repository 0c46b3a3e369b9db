"""Elastic on Kubernetes: ``elastic render``, and the progress of a TrainJob.

General layout, from the command line down to one field:

* ``command``: ``elastic render`` itself: its flags, what it reads and prints.
* ``manifests``: the manifests that stand for an ElasticJob: a Job with its Service, a JobSet, or a runtime of Kubeflow
  Trainer with its TrainJob. The pod of a node is the same in all three.
* ``elastic_job``: the ElasticJob that was read, checked field by field.
* ``documents``: YAML as Kubernetes takes it.

``trainjob_status`` is independent of these: an observer in the agent that reports a TrainJob's progress.
"""

__version__ = "0.1.0"
