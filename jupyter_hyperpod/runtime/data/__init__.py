"""The data of a session: samples by index, the order in which they are read, and batches of them."""
