"""The package ``worker``."""
