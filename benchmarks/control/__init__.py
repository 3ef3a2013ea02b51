"""Measurements of what stands beside the training: journals, readers, the supervisor and the coordinator."""
