"""A preprocess.py that does nothing: what is left is clearml-serving's HTTP layer alone.

It answers with a finished Response, so that not even its JSON is the host's work.
"""

from typing import Any

from starlette.responses import Response

ANSWER = b'{"label":"POSITIVE","score":0.5}'


class Preprocess:
    def process(self, data: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return Response(ANSWER, 200, None, "application/json")
