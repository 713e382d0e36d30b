"""What the kit does on a machine with an NVIDIA GPU: `python -m benchmarks check-gpu`.

Its steps are rows of steps.STEPS; each is at most eight minutes, stores what it found, and names
what the machine lacks instead of failing.
"""
