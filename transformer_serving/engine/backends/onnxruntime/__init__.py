"""The backend `onnxruntime` of the embedded stack; the Triton image has a native one."""
