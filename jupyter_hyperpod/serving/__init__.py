"""Serves models over HTTP: a gateway that balances, retries and scales, and replicas that load a model and answer."""
