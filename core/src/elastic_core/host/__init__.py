"""The package ``host``."""
