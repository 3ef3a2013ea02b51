"""What a person's program keeps from step to step: copies of it, where it is found, and what cannot be repeated."""
