# Made by docs/render_public.py.

from elastic_core.protocol.admission import describe_differences as describe_differences
from elastic_core.protocol.codec import decode_entry as decode_entry, decode_row as decode_row, encode_entry as encode_entry, encode_row as encode_row
from elastic_core.protocol.counters import as_record as as_record, past_failures as past_failures
from elastic_core.protocol.entries import Answers as Answers, Body as Body, Closed as Closed, Entry as Entry, Exclusion as Exclusion, Halt as Halt, HaltReason as HaltReason, Leader as Leader, Member as Member, Offer as Offer, Open as Open, Round as Round, place as place
from elastic_core.protocol.failure_detector import NodeView as NodeView, Observation as Observation, PROOF_HEARTBEATS as PROOF_HEARTBEATS, SUSPICION_SECONDS as SUSPICION_SECONDS
from elastic_core.protocol.ledger import Ledger as Ledger, advance as advance, compose as compose
from elastic_core.protocol.limits import HOSTS_BYTES as HOSTS_BYTES, MAX_DRAINED_NODES as MAX_DRAINED_NODES, MAX_FAILURES as MAX_FAILURES, clip as clip, fit_names as fit_names, list_names as list_names
from elastic_core.protocol.node import NodeState as NodeState, row_of as row_of, step as step
from elastic_core.protocol.node_events import Effect as Effect, Exit as Exit, Leaving as Leaving, MakeOffer as MakeOffer, NodeEvent as NodeEvent, Offered as Offered, Progressed as Progressed, Start as Start, Stop as Stop, Work as Work, WorkerFailed as WorkerFailed, WorkersDone as WorkersDone, WorkersGone as WorkersGone
from elastic_core.protocol.questions import decode as decode
from elastic_core.protocol.roster import Ask as Ask, NodeInfo as NodeInfo, NodeRow as NodeRow, Phase as Phase, SavedStep as SavedStep, Slots as Slots
from elastic_core.protocol.schema import reader as reader, writer as writer
from elastic_core.protocol.settings import Agreement as Agreement, Command as Command, PROTOCOL as PROTOCOL, Settings as Settings, Versions as Versions

NAMES: dict[str, str]
