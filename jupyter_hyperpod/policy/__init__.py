"""All decisions, as pure functions: no clock, no I/O. Each returns a value and the sentence that justifies it."""
