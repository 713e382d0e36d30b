"""`python -m transformer_serving.gateway --host 127.0.0.1 --port 8080`.

Tested by tests/gateway/test_both_ways.py.
"""

from __future__ import annotations

from transformer_serving.gateway.server.command import main

if __name__ == "__main__":
    main()
