"""A job's files on a machine that does not share the store of its head: what grew is carried there, byte for byte."""
