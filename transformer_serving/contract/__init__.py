"""What the desk, the inference container and the engine agree on: files, names and errors.

The leaf of the import tree: standard library only, Python 3.10 and newer, no imports of ours.
"""
