"""The whole runtime on a real Kubernetes of two nodes: started, disturbed, asked by many jobs."""
