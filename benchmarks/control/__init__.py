"""Measurements of what stands beside the training: journals, readers and the supervisor."""
