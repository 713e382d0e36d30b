"""What the parts of one inference worker share."""
