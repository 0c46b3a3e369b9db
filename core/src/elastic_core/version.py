"""The version of elastic-core. All layers may import this module; ``__init__`` names all layers, for type checkers."""

__version__ = "0.1.0"
