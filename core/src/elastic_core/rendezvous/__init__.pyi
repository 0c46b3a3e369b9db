# Made by docs/render_public.py.
from typing import Any

from elastic_core.digest import hex_digest as hex_digest
from elastic_core.errors import RendezvousClosedError as RendezvousClosedError, RendezvousConnectionError as RendezvousConnectionError, RendezvousError as RendezvousError, RendezvousRefusedError as RendezvousRefusedError, RendezvousStateError as RendezvousStateError, RendezvousTimeoutError as RendezvousTimeoutError
from elastic_core.rendezvous.backend import Cursor as Cursor, HandlerStore as HandlerStore, HeartbeatReply as HeartbeatReply, Link as Link, MAX_VALUE_BYTES as MAX_VALUE_BYTES, ORIGIN as ORIGIN, RendezvousBackend as RendezvousBackend, ReplaceableServer as ReplaceableServer, RosterRow as RosterRow, StoreWarning as StoreWarning, TOMBSTONE as TOMBSTONE, WorkersStore as WorkersStore, WrappedBackend as WrappedBackend, check_size as check_size
from elastic_core.rendezvous.guard import protect as protect
from elastic_core.rendezvous.job_token import TOKEN_VARIABLE as TOKEN_VARIABLE, read_token as read_token
from elastic_core.rendezvous.options import FORM as FORM, HostPort as HostPort, RendezvousOptions as RendezvousOptions, RendezvousParameters as RendezvousParameters, boolean as boolean, ip_address as ip_address, positive_seconds as positive_seconds, timeouts as timeouts
from elastic_core.rendezvous.records import Entry as Entry, MAX_RECORD_BYTES as MAX_RECORD_BYTES, RecordReader as RecordReader, Row as Row, is_number as is_number, pack_link as pack_link, pack_revision as pack_revision, quoted as quoted, unquoted as unquoted

NAMES: dict[str, str]

def __getattr__(name: str) -> Any: ...
