"""Hangs of Elastic jobs: notices them, shows which rank the others wait for and at which line, and may end it."""

from __future__ import annotations

__version__ = "0.1.0"
