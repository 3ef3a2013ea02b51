"""Communication between members: connections, shared memory, gradient reduction, and transfer of training state."""
