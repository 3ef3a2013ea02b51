"""The worker: the process in which a person's cell runs, and its place in the group of all workers."""
