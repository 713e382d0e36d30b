"""Models' files: fetched, kept, and laid where Triton reads them."""
