"""At your desk: convert, bundle, deploy, check and run."""
