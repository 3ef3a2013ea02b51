"""The supervisor: the daemon that owns the nodes of one store. It starts, replaces and ends processes."""
