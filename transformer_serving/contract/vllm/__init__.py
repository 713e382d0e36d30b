"""Triton's vLLM backend: what starts its engine, and the tensors that it is asked with."""
