"""Estimates what failures cost and what recovery saves: a closed form, and a simulator that runs the real policies."""
