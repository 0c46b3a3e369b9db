# Made by docs/render_public.py.
from typing import Any

from elastic_core.digest import hex_digest as hex_digest
from elastic_core.errors import RendezvousClosedError as RendezvousClosedError, RendezvousConnectionError as RendezvousConnectionError, RendezvousError as RendezvousError, RendezvousStateError as RendezvousStateError, RendezvousTimeoutError as RendezvousTimeoutError
from elastic_core.rendezvous.backend import Cursor as Cursor, FoundJob as FoundJob, HeartbeatReply as HeartbeatReply, Link as Link, MAX_VALUE_BYTES as MAX_VALUE_BYTES, ORIGIN as ORIGIN, RendezvousBackend as RendezvousBackend, RosterRow as RosterRow, StoreWarning as StoreWarning, TOMBSTONE as TOMBSTONE, copy_traits as copy_traits
from elastic_core.rendezvous.handler import BootstrapStoreInfo as BootstrapStoreInfo, HandlerAnswer as HandlerAnswer, RendezvousHandler as RendezvousHandler, RendezvousInfo as RendezvousInfo, RendezvousParameters as RendezvousParameters
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE as TOKEN_VARIABLE, read_token as read_token
from elastic_core.rendezvous.options import RendezvousOptions as RendezvousOptions, boolean as boolean, positive_seconds as positive_seconds
from elastic_core.rendezvous.seal import protect as protect

NAMES: dict[str, str]

def __getattr__(name: str) -> Any: ...
