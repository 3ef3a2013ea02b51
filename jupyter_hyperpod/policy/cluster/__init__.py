"""Decisions about a cluster as a whole."""
