"""Engines: other people's servers of models that a deployment's replicas run."""
