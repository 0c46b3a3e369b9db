"""Commands for operators of jobs, as ``elastic status`` and ``elastic drain``, and the state of an agent on SIGQUIT.

* ``status``: ``elastic status``: nodes, ranks and restarts of a job. ``job_view``: what a job's store shows of it.
* ``host_requests``: ``elastic drain`` and ``elastic release``: requests about a host to the agents of a job.
  ``drain_request``: what these enter in the store, and how they wait.
* ``logs``: ``elastic logs``: the workers' output that was kept. ``plugin_list``: ``elastic plugins``.
* ``plugin``: in an agent, keeps the file by which commands on this host find its job. ``job_file``: that file, and the
  socket beside it, over which commands use the store of the job. ``abandoned_directories``: what killed agents left.
* ``job_store``: in a command, the store of the job that the user means. ``job_request``: a request in that store.
  ``host_jobs``: the jobs of this host, their list, and the command's side of the socket.
* ``state_dump``: in an agent, writes its state on SIGQUIT. ``agent_state``: that state in words. ``decision_file``: the
  decisions of an agent, for a bug report. ``verdict_file``: in an agent, writes in the end how the job has ended.
"""

__version__ = "0.1.0"
