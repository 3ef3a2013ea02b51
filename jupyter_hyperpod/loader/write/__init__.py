"""Writes a model: lays tensors out in files, writes the files in parts, and publishes the complete model."""
