"""With whom a store is shared: said for people, and changed."""
