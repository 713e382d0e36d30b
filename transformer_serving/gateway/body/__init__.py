"""A request's body: counted as it comes, inflated under a cap, parsed within a limit."""
