"""A module next to the script."""

from __future__ import annotations

WHERE = __file__
