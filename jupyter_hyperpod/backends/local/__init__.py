"""Processes of this machine as nodes: a preloaded interpreter is forked instead of started."""
