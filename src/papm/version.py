"""The version, on its own so that building the package does not import torch."""

__version__ = "0.1.0"
