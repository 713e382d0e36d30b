"""The Open Inference Protocol over gRPC, imported only where the port is on."""
