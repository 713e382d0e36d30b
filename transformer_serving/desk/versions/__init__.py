"""The version lock: what the kit is pinned to, and which releases there are to choose from."""
