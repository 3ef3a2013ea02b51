"""The planner against the machine."""
