"""The notebook of a job, given back with its outputs."""
