"""A bundle's program for PyTorch: torch's own JSON, read as data."""
