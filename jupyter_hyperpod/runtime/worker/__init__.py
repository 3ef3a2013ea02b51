"""The worker: the process that runs the user's cell, and its membership in the group of all workers."""
