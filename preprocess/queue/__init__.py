"""What waits for the engine: who is let in, whose turn it is, and what leaves together."""
