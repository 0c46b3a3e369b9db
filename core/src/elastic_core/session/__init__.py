"""The package ``session``."""
