"""Pods that stay after their job, so that the next one begins in an interpreter that has imported everything."""
