"""What the operating system gives: processes, children that end with their parent, private sockets."""
