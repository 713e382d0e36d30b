"""clearml-serving's own app: imported, its faults fenced, its endpoints built."""
