"""One Triton: what is asked of it, and what it tells of itself."""
