"""Boxwright: train, optimise and serve the YOLOX object detector fast on the machines people already have."""

__version__ = "0.1.0"
