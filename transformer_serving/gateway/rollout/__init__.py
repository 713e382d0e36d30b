"""What a rollout compares: mirrored requests, and the figures of both bundles."""
