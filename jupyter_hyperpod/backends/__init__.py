"""They know processes, not training: each backend starts a LaunchPlan somewhere and reports what became of it."""
