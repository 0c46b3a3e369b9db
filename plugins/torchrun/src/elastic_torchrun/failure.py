"""The failure of a job, or of one that could not begin, in the form that callers of torch's launcher expect."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousError

from elastic_core.errors import ElasticError
from elastic_torchrun import launch


class JobFailed(ChildFailedError, SystemExit):
    """torch's ``ChildFailedError``, for a program that catches it. One that does not exits as ``elastic run`` does."""

    def __init__(self, failed: launch.ChildFailedError) -> None:
        incident, code = failed.incident, failed.returncode
        rank, local_rank, pid, exit_code = 0, 0, -1, code  # where no worker is to blame
        if incident is not None and incident.rank is not None:
            rank, local_rank, pid = incident.rank, incident.local_rank or 0, incident.pid or -1
            exit_code = incident.exit_code or code
        failure = ProcessFailure(local_rank=local_rank, pid=pid, exitcode=exit_code, error_file=launch.NOT_AVAILABLE)
        if incident is not None and exit_code >= 0:
            failure.message = incident.detail or incident.message or failure.message
        super().__init__("elastic run", {rank: failure})
        self.code = code


class NodeRefused(RendezvousError, SystemExit):
    """torch's ``RendezvousError``: this node could not take part in the job, or its results could not be read."""

    def __init__(self, message: str, code: int = ElasticError.exit_code) -> None:
        super().__init__(message)
        self.code = int(code)
