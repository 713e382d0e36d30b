"""Asks the inference app until auto-update serves the pipeline's model."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

NAME, WANTED, WAIT_S = sys.argv[1], 70, 180
url = f"{os.environ['CLEARML_DEFAULT_BASE_SERVE_URL'].rstrip('/')}/{NAME}/1"
headers = {"Content-Type": "application/json"}
if key := os.environ.get("TRANSFORMER_SERVING_KEY"):
    headers["x-api-key"] = key
deadline = time.monotonic() + WAIT_S
said: object = "nothing"
while time.monotonic() < deadline:
    request = urllib.request.Request(url, json.dumps({"x": 1}).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        said = f"status {error.code}"
    except OSError as error:
        said = str(error)
    if said == {"value": WANTED}:
        print("SERVED")  # noqa: T201
        sys.exit(0)
    time.sleep(0.5)
sys.exit(f"{url} answered {said} within {WAIT_S} s, not the pipeline's value")
