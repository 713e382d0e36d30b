"""How much a request's body may say, whichever part reads it.

Tested by tests/preprocess/test_raw_body.py, tests/preprocess/test_v2.py,
tests/gateway/test_grpc.py and tests/gateway/test_openapi.py.
"""

from __future__ import annotations

# A day; the longest that a request may name.
MAX_TIMEOUT_MS = 86_400_000
# Lists, objects and values of JSON where nobody says otherwise.
USUAL_ELEMENTS = 100_000
