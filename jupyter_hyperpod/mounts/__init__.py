"""Mounted storage: the mount table, drivers, files on mounts, probes of mounts, and copying."""
