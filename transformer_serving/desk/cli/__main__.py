"""`python -m transformer_serving.desk.cli` is the command line too.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

from transformer_serving.desk.cli import main

if __name__ == "__main__":
    main()
