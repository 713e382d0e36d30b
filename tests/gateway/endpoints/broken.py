"""An endpoint whose code does not even load."""

raise RuntimeError("this file is broken on purpose")
