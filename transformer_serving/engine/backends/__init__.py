"""Our Triton backends, run by Triton's Python stub: text models on OpenVINO and ONNX Runtime, and
language models on OpenVINO.

The modules beside the backends are copied into each backend's folder (engine.backend_directory);
beside this package they import the contract of text generation and no more of ours. Log lines are
ASCII: the stub's stdout is.
"""
