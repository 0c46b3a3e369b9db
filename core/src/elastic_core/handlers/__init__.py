"""The package ``handlers``."""
