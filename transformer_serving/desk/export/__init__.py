"""A model becomes a graph, and the endpoint that it will be."""
