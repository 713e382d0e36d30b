"""Runs in the inference container around clearml-serving's own app."""
