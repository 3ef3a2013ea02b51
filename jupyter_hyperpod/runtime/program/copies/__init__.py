"""Copies of what a program keeps, which can travel, and their way back into its objects."""
