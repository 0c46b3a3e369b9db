"""Fixtures of this distribution's tests."""

from __future__ import annotations

from elastic_testing.distributions import install

__all__ = ["install"]
