"""The backend `torch_text`."""
