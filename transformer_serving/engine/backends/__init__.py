"""Our Triton backends: text models on OpenVINO and ONNX Runtime, run by Triton's Python stub.

The modules beside the backends are copied into each backend's folder (engine.backend_directory);
they import nothing of ours from outside this package. Log lines are ASCII: the stub's stdout is.
"""
