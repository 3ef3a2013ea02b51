"""The Python tests."""
