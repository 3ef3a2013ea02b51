"""What the workers of a job print: written by agents, capped, found by time and by step, followed."""
