"""The embedded stack: everything an endpoint needs, on one machine."""
