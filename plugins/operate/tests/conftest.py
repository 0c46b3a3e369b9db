"""Fixtures of these tests: a plugin that is installed for one test only."""

from __future__ import annotations

from elastic_testing.distributions import install

__all__ = ["install"]
