"""The facts of torch's flight recorder about a hang: the collective of each rank, and the ranks that are not there.

torch records the newest collectives of each process. ``plugin`` runs in the agent, without torch: it has workers write
dumps into the folder of their round, asks for them once the job hangs, and runs ``analysis``, which is torch's own. An
NCCL process group answers by a thread of torch's. For the others a thread of ``plugin`` does so, in scripts that call
``elastic.init_process_group``.
"""
