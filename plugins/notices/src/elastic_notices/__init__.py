"""elastic-notices: a node of a spot machine leaves the job before the cloud takes the machine away.

``plugin`` is what Elastic loads; it finds out from files which cloud a machine is of. ``flags`` declares its flag.
``aws``, ``gcp`` and ``azure`` each know one metadata service: what to ask, and what an answer means, as a ``notice``
(pure functions). ``http`` asks, ``watch`` asks again and again, on a thread for each source, and says what it has
found.
"""

__version__ = "0.1.0"
