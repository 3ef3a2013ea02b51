"""The health of nodes as Kubernetes keeps it: what agents show at a node, and checks that run on one."""
