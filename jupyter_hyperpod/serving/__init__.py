"""A small real endpoint: a gateway that balances, retries and follows the load, and replicas that load and answer."""
