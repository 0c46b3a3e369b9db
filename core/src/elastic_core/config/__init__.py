"""The package ``config``."""
