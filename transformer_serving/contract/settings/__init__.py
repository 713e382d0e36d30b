"""What an operator sets, where several parts read it."""
