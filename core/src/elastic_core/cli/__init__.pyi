# Made by docs/render_public.py.

from elastic_core.cli.interrupt import end_at_once as end_at_once, raise_again as raise_again
from elastic_core.cli.option import FlagCommand as FlagCommand, FlagOption as FlagOption
from elastic_core.cli.run import RunCommand as RunCommand, warn as warn
from elastic_core.cli.settle import configure as configure, meeting_place as meeting_place, outline as outline, plugins_named as plugins_named, without_effect as without_effect

NAMES: dict[str, str]
