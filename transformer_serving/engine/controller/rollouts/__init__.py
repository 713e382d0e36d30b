"""Guarded rollouts: the controller's part, which takes the steps and judges them."""
