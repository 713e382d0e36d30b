"""A model becomes a bundle: an encoder, or a language model for one of its engines."""
