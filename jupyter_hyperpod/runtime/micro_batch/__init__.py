"""What a micro-batch leaves besides its gradient: its loss, its metrics, and state for the next step."""
