# Made by docs/render_public.py.

from elastic_core.plugins.builtin import MaxRestartsPolicy as MaxRestartsPolicy, is_worth_requeueing as is_worth_requeueing
from elastic_core.plugins.entry_points import Catalogue as Catalogue, Group as Group, InstalledPlugin as InstalledPlugin, import_plugin as import_plugin
from elastic_core.plugins.flags import declared_flags as declared_flags, not_declared as not_declared
from elastic_core.plugins.local_backend import LocalBackend as LocalBackend, MemoryStore as MemoryStore
from elastic_core.plugins.manager import BACKENDS as BACKENDS, Plugins as Plugins, core_plugins as core_plugins, hooks_of as hooks_of, load as load, load_backend as load_backend

NAMES: dict[str, str]
