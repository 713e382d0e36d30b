"""The pages for a browser: at / to try the endpoints, at /docs of their API."""
