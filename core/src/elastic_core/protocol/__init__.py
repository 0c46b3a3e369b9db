"""The package ``protocol``."""
