"""clearml-serving's app behind the gateway: its faults fenced, its endpoints built."""
