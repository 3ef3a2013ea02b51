"""Reading a model: which bytes, from where, in which order, and into which memory."""
