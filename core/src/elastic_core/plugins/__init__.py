"""The package ``plugins``."""
