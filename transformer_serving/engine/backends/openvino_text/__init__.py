"""The backend `openvino_text`."""
