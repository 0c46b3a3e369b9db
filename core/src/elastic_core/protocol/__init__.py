"""The protocol by which the nodes of a job agree. All of it is pure: no thread, no clock, no I/O.

``docs/internals/protocol.md`` explains it and defines its rules. To read the code, begin with ``leader`` and ``node``.

* Records: ``entries`` hold decisions, ``roster`` has what each node says about itself, ``settings`` what an OPEN
  carries. ``ledger`` is the state that follows from the entries. ``codec`` (with ``schema`` and ``limits``) turns
  records into JSON and back.
* The leader: ``leader`` decides which entry follows. It decides from a ``leader_view`` and makes entries with
  ``leader_entries``. ``failure_detector`` says which nodes are lost, and which node follows a leader that is gone,
  ``planned_stop`` how workers stop together, and when a round makes room for waiting nodes, ``counters`` what a new
  round costs, and ``questions`` what monitors of all nodes are asked.
* The node: ``node`` decides what the agent does next, in terms of ``node_events``.
* Around a run: ``admission`` says which nodes may join, and ``repair`` what to do about a store that lost entries, and
  which entries may shrink.
"""

from elastic_core import names_of

NAMES = {
    "protocol.admission": "describe_differences",
    "protocol.codec": "decode_entry decode_row encode_entry encode_row",
    "protocol.counters": "as_record past_failures",
    "protocol.entries": "Answers Body Closed Entry Exclusion Halt HaltReason Leader Member Offer Open Round place",
    "protocol.failure_detector": "NodeView Observation PROOF_HEARTBEATS SUSPICION_SECONDS",
    "protocol.ledger": "Ledger advance compose",
    "protocol.limits": "HOSTS_BYTES MAX_DRAINED_NODES MAX_FAILURES clip fit_names list_names",
    "protocol.node": "NodeState row_of step",
    "protocol.node_events": "Effect Exit Leaving MakeOffer NodeEvent Offered Progressed Start Stop Work "
    "WorkerFailed WorkersDone WorkersGone",
    "protocol.questions": "decode",
    "protocol.roster": "Ask NodeInfo NodeRow Phase SavedStep Slots",
    "protocol.schema": "reader writer",
    "protocol.settings": "Agreement Command PROTOCOL Settings Versions",
}

__getattr__ = names_of(__name__, NAMES)
