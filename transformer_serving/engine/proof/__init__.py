"""The proof that an engine answers as the reference does, at every shape that serves.

A bundle carries the questions and the reference's answers as tensors; whoever can run the engine
(convert at the desk, the controller through Triton) asks them. Needs numpy alone.
"""
