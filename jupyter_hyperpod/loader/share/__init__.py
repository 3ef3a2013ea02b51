"""Ranks that load the same model share the work: on one host through memory, between hosts through sockets."""
