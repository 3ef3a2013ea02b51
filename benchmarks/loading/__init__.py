"""A model from an object store into memory: ours beside other loaders."""
