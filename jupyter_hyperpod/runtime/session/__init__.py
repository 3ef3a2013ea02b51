"""hp.Session: the training loop of a cell, with all that makes it exact."""
