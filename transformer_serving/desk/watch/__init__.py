"""`status --watch`: what one leaves open in a terminal."""
