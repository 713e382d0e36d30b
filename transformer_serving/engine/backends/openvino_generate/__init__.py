"""The backend `openvino_generate`."""
