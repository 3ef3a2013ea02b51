"""The supervisor: the daemon that owns the machines of one store. It starts, replaces and ends processes."""
