"""What the tests of this distribution share."""

from __future__ import annotations

from elastic_testing.distributions import install

__all__ = ["install"]
