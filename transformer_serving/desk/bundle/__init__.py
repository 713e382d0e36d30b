"""The folder that is deployed: written, opened, checked and signed."""
