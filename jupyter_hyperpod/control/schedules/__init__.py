"""Runs that are submitted at times of the clock."""
