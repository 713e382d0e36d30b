"""Our Triton backends, run by Triton's Python stub: text models on OpenVINO, ONNX Runtime and
PyTorch, and language models on OpenVINO.

The modules beside the backends are copied into each backend's folder (engine.backend_directory);
beside this package they import the contract's modules that are named there and no more of ours. Log
lines are ASCII: the stub's stdout is.
"""
