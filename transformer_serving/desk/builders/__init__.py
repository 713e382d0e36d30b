"""A graph becomes the files of an engine."""
