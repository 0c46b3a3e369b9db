"""The release of elastic-core. It is not in ``__init__``, which imports every other package for its types."""

__version__ = "0.1.0"
