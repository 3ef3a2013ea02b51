"""Lets ranks that load the same model share the work: through memory on one host, through sockets between hosts."""
