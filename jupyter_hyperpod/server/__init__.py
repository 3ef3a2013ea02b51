"""The Jupyter server extension: REST for requests, one websocket for events."""
