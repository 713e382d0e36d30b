"""The processes that serve, and their HTTP."""
