"""The client of Triton: one bundle version, of one server or several."""
