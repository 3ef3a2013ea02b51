"""What is written down of a local cluster beside its journal."""
