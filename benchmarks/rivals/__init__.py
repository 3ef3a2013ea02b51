"""Training scripts of the systems we are compared with, each written as its own documentation advises."""
