"""What runs beside Triton: our backends, the model configuration and the controller.

Everything here also runs on the Python 3.10 of the Triton 24.10 image.
"""
