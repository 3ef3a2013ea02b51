"""The coordinator: one per job. It decides who is a member, and tells every member what to do."""
