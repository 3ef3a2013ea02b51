"""The agent: one per node and job. It starts the worker processes, watches them and captures their output."""
