"""The store of a job whose pods share no directory: each has one of its own, and the head's has everything."""
