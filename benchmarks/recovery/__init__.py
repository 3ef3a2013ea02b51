"""Faults and what they cost: ours, and beside other systems."""
