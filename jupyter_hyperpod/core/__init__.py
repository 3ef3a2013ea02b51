"""The nouns every other package speaks. Standard library only, no I/O, no clock."""
