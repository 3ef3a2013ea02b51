"""Sweeps: many trials of one code, each a job of its own."""
