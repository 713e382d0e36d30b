"""ClearML's own tools, driven as they are."""
