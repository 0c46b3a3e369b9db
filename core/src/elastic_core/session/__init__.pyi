# Made by docs/render_public.py.

from elastic_core.session.contact import FENCE_SHARE as FENCE_SHARE, FIRST_CONNECTION_SECONDS as FIRST_CONNECTION_SECONDS, StoreWait as StoreWait
from elastic_core.session.ledger_reader import load as load, news as news, peek as peek, readable as readable
from elastic_core.session.runtime import RUNTIME as RUNTIME, Runtime as Runtime
from elastic_core.session.session import Session as Session
from elastic_core.session.state import SessionCalls as SessionCalls

NAMES: dict[str, str]
