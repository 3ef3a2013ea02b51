"""Kubernetes: each node of a job is a Job with one pod; and the client of its API, on the standard library."""
