"""The events of a run, for programs: two observers that are on once installed.

* ``events``: the plugin ``events``: every event as a JSON line in the run's log directory.
* ``prometheus``: the plugin ``prometheus``: off until a port is named, then numbers for Prometheus.
* ``endpoint``: the numbers in Prometheus's words, over HTTP. It alone imports ``prometheus_client``.

Every run imports both plugins, so neither imports more than core has anyway, until it has something to do.
"""

__version__ = "0.1.0"
