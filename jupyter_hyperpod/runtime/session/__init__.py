"""hp.Session, the training loop of a cell: data, gradients, guard, integrity checks, recovery of a step."""
