"""Pieces of training in many people's styles: each disturbed in several ways, and compared with one calm node."""
