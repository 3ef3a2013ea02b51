"""Durable checkpoints: their files, and writing them in the background of training."""
