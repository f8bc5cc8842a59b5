"""Take, use and give back slices of this node's AMD GPUs. Standard library only."""

__version__ = "0.1.0"
