"""The local backend: processes of this machine act as nodes, forked from a preloaded interpreter."""
