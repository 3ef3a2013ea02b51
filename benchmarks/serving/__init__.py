"""Deployments: new replicas, and replicas that are killed."""
