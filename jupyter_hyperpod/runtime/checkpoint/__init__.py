"""Durable checkpoints: files, how they are written behind training's back, and when."""
