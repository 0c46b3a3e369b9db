"""The package ``warden``."""
