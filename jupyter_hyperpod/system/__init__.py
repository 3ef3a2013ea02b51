"""Wraps what the operating system offers: processes, children that end with their parent, private sockets."""
