"""Turns cells, notebooks and files into the plain Python that every rank runs."""
