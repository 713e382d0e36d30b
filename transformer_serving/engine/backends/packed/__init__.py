"""A program of texts that lie one behind the other in one row, without padding."""
