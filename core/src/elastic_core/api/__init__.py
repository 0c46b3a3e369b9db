"""The package ``api``."""
