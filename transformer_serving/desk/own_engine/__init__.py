"""Bundles of engines that were brought."""
