"""Transformers on ClearML Serving and Triton; what runs where has a package of its own."""
