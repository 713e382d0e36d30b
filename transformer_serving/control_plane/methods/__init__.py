"""The methods of the API, a file a subject."""
