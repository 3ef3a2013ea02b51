"""What members exchange: connections, shared memory, sums of gradients, and training state."""
