"""The interface for authors of a rendezvous backend, with the names of torch's package of the same name.

* ``backend`` is the interface of a store. ``options`` has the options that a backend declares, its parameters, and the
  endpoint ``HOST[:PORT]``. ``records`` packs entries and rows for a store of keys and values.
* ``guard`` wraps a backend's connection so that an error of the backend names it, and signs what is written with the
  job's token, which ``job_token`` reads.

Core's own backend is ``plugins.local_backend``. ``protocol`` decides, over the records in a store, and ``session``
connects a node to its store. ``docs/internals/protocol.md`` explains the protocol and defines its rules.
"""

from elastic_core import names_of

NAMES = {
    "digest": "hex_digest",
    "errors": "RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousRefusedError "
    "RendezvousStateError RendezvousTimeoutError",
    "rendezvous.backend": "Cursor HandlerStore HeartbeatReply Link MAX_VALUE_BYTES ORIGIN "
    "RendezvousBackend ReplaceableServer RosterRow StoreWarning TOMBSTONE WorkersStore "
    "WrappedBackend check_size",
    "rendezvous.guard": "protect",
    "rendezvous.job_token": "TOKEN_VARIABLE read_token",
    "rendezvous.options": "FORM HostPort RendezvousOptions RendezvousParameters boolean ip_address positive_seconds "
    "timeouts",
    "rendezvous.records": "Entry MAX_RECORD_BYTES RecordReader Row is_number pack_link pack_revision quoted unquoted",
}

__getattr__ = names_of(__name__, NAMES, torchs=True)
