# Made by docs/render_public.py.
from typing import Any

from elastic_core.agent.console import write_all as write_all
from elastic_core.agent.directories import MARK as MARK, PREFIX as PREFIX, names_free_slot as names_free_slot
from elastic_core.agent.report import Ending as Ending, root_cause as root_cause
from elastic_core.agent.start import run as run

NAMES: dict[str, str]

def __getattr__(name: str) -> Any: ...
