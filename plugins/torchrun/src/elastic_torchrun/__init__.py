"""Elastic and torchrun: each in the other's place.

``elastic exec COMMAND``: whatever the command starts gets Elastic where it asks for torchrun. And plain torchrun meets
over Elastic's backends, in ``handlers``.

* ``command``: ``elastic exec`` itself. It sets ``ELASTIC_EXEC``, and becomes the command.
* ``startup``: what an interpreter does when it starts with that variable, or by ``python -m`` with a launcher of
  torchelastic's or Bagua's. A ``.pth`` file beside the package, which every interpreter of the environment reads, calls
  it then and only then.
* ``__main__``: the replacement of the program ``torchrun``. It does not import torch.
* ``launcher``: the replacement of ``torch.distributed.run.run`` and ``main``, and of
  ``torch.distributed.launcher.api.launch_agent``, for programs that call them. ``failure``: what those programs get
  when the job fails. ``error_file``: the launcher's own error file.
* ``launch``: torch's Python names for a job, and for its failures. ``launch_config`` turns their arguments into a run.
  ``call``: workers that are Python functions. ``local_agent``: agents as objects, ``LocalElasticAgent`` and ``Std``.
* ``rendezvous_api``: torch's interface of a rendezvous handler. ``errors``: torch's errors and ours, each in the
  other's place.
* ``timers``: the two limits of torch's agent for a hung worker, as a monitor. ``stream_filters``: the flags that copy
  lines of the workers' output. ``event_log``: the flag that shows events as JSON.
* ``torch_names``: the table of torch's names under core's package, which are these or torch's own.
* ``foreign``: jobs of ``elastic run`` over rendezvous handlers of others, such as torch's own.
* ``handlers``: the handlers that plain torchrun finds for our backends, and torch's registry of handlers.

The variable is taken out of the environment before workers start: what a worker starts by itself is not the launcher's
business, and finds torch's own torchrun.
"""

__version__ = "0.1.0"
