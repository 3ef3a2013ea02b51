"""What is left of a run: reads a job's journal once, within bounds, and shows or compares it as a page."""
