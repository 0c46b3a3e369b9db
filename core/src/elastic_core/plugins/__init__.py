"""Finds the installed plugins, and calls those of a run without harm to the job.

* ``entry_points``: finds installed plugins. ``manager``: loads and calls those of a run.
* ``verdicts``: asks the failure policies, and combines their verdicts. ``observers``: delivers events to plugins.
* ``builtin``: core's own plugins. ``local_backend``: the backend for one node.
* ``flags``: the flags that distributions declare.
"""

from elastic_core import names_of

NAMES = {
    "plugins.builtin": "MaxRestartsPolicy is_worth_requeueing",
    "plugins.entry_points": "Catalogue Group InstalledPlugin import_plugin",
    "plugins.flags": "declared_flags not_declared",
    "plugins.local_backend": "LocalBackend MemoryStore",
    "plugins.manager": "BACKENDS Plugins core_plugins hooks_of load load_backend",
}

__getattr__ = names_of(__name__, NAMES)
