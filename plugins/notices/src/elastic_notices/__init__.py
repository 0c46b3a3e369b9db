"""elastic-notices: a node of a spot machine leaves the job before the cloud takes the machine away.

``plugin`` is what Elastic loads; it finds out from files which cloud a machine is of, and asks that again and again, on
a thread for each source. ``flags`` declares its flag.
``aws``, ``gcp`` and ``azure`` each know one service: what to ask, and what an answer means. ``metadata`` has what they
share.
"""

__version__ = "0.1.0"
