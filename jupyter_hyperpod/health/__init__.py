"""What runs on a node to know how it is: probes, whose reading is apart from their parsing, and the agent."""
