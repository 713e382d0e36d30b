"""`python -m transformer_serving.desk.cli` is the command line too."""

from __future__ import annotations

from transformer_serving.desk.cli import main

if __name__ == "__main__":
    main()
