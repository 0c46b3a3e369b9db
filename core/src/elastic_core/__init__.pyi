# Made by docs/render_public.py.
from collections.abc import Callable, Mapping
from typing import Any

from elastic_core.config.flag import Flag as Flag
from elastic_core.config.run import RunConfig as RunConfig
from elastic_core.decision_log import Decision as Decision
from elastic_core.errors import ElasticError as ElasticError, PluginError as PluginError, RendezvousClosedError as RendezvousClosedError, RendezvousConnectionError as RendezvousConnectionError, RendezvousError as RendezvousError, RendezvousRefusedError as RendezvousRefusedError, RendezvousStateError as RendezvousStateError, RendezvousTimeoutError as RendezvousTimeoutError, StoreLostError as StoreLostError, UnhealthyNodeError as UnhealthyNodeError, UsageError as UsageError
from elastic_core.gates import AgentEnd as AgentEnd, AgentState as AgentState, JoinGate as JoinGate, JoinedRun as JoinedRun, RunSummary as RunSummary, StartGate as StartGate
from elastic_core.hookspecs import hookimpl as hookimpl
from elastic_core.monitors import Assignment as Assignment, LineReader as LineReader, RunningRound as RunningRound
from elastic_core.rendezvous.backend import RendezvousBackend as RendezvousBackend
from elastic_core.rendezvous.options import RendezvousOptions as RendezvousOptions, RendezvousParameters as RendezvousParameters
from elastic_core.version import __version__ as __version__
from elastic_core.worker.error_file import record as record
from elastic_core.worker.library import ElasticDistributedSampler as ElasticDistributedSampler, TrainState as TrainState, init_process_group as init_process_group
from elastic_core.worker.progress import report as report

NAMES: dict[str, str]

def __getattr__(name: str) -> Any: ...
def names_of(package: str, names: Mapping[str, str], *, torchs: bool = False) -> Callable[[str], Any]: ...

PUBLIC: dict[str, str]
_SUBMODULES: tuple[str, ...]
