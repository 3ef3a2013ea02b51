"""Why a pod does not run yet, in words for people: what the scheduler says of it, and what its events say."""
