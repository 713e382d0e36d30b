"""Reads a model: its files, task, tokenizer and labels."""
