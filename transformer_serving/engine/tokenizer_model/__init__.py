"""The tokenizer as a Triton model, for a Triton that is asked with raw text."""
