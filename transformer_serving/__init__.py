"""The operator's desk: convert, bundle, deploy, check and run transformer endpoints."""
