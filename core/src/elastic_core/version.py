"""The release of elastic-core. It is here and not in the package, which imports every other package for its types."""

__version__ = "0.1.0"
