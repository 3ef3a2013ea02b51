"""Watches the health of a node: probes, parsers of what they read, and the health agent."""
