"""The Jupyter server extension: REST for what a person asks, one websocket for what happened."""
