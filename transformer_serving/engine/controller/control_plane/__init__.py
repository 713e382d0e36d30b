"""What a serving task asks for, and the ways of ClearML to it."""
