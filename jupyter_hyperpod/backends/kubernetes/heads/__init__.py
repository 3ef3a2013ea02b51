"""Jobs whose head runs in a pod: the head, as its submitter sees it, and the pods of nodes, as the head sees them."""
