"""Measuring a running endpoint: a load generator, its figures, and the command `bench`."""
