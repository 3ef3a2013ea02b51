"""Jobs whose head runs elsewhere: who starts it, brings it commands and takes away what it writes, on this machine."""
