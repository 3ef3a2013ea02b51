"""What failures cost and what recovery is worth: a closed form, and a simulator that runs the production policies."""
