"""What clients call, without Jupyter: submit and follow jobs, manage clusters, nodes, mounts and deployments."""
