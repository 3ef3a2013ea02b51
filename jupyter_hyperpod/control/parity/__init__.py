"""Environments of jobs: compared before they start, locked, and built again."""
