"""What else is measured than the side by side."""
