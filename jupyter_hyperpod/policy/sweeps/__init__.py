"""Decisions of sweeps: what is tried, in which order, and how a value gets into the code."""
