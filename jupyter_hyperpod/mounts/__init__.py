"""Mounted storage: the table of mounts, the drivers that mount them, and the files in them."""
