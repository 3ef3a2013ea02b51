"""Pure decisions: no clock, no I/O, no global randomness. Each returns a value and the sentence that justifies it."""
