"""Whether an engine answers as the reference does."""
