"""From a bundle to an endpoint that answers."""
