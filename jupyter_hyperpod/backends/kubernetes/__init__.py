"""Kubernetes: the client of its API, on the standard library."""
