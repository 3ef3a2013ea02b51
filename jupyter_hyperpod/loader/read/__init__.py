"""Reads a model: plans the bytes, fetches them from their sources and places them in memory."""
