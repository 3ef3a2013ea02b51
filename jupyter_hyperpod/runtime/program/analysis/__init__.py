"""What the source of a program says: what its loops carry, where values flow, and what no seed decides."""
