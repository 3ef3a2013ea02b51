"""Writing a model: which tensors into which file, in parts, published when it is whole."""
