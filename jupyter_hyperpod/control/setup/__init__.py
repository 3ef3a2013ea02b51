"""Writes what prepares a cluster: the image of a job's environment, an EKS cluster, our own objects in it."""
