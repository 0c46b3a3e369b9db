"""Four plugins for Elastic, as small as they can be and still be of use.

``backend`` is a rendezvous backend, ``policy`` a failure policy, ``observer`` an observer, and ``gone``
knows which nodes are gone for good. Each is announced by one
line of ``pyproject.toml``, and imported only when a run names it.
"""

from __future__ import annotations
