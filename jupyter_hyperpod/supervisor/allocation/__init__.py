"""The nodes of jobs that schedulers run: what is requested, what is known of it, and which job waits for which."""
