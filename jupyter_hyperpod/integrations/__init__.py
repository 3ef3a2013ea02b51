"""Other frameworks in a session: one module per framework, each imported only by the program that uses it."""
