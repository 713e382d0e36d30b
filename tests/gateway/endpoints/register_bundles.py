"""Creates a serving service with the files of a folder as endpoints, and prints its id.

`register_bundles.py FOLDER NAME...`: NAME.py is a Triton endpoint, `NAME=custom_async` of another
engine. NAME.json holds the tensors as clearml-serving has them, where they matter.
"""

import json
import sys
from pathlib import Path

from clearml_serving.serving.endpoints import ModelEndpoint
from clearml_serving.serving.model_request_processor import ModelRequestProcessor

from tests.gateway.endpoints.register import TENSORS


def main(folder: Path, names: list[str]) -> None:
    session = ModelRequestProcessor(force_create=True, name="text tests")
    for name in names:
        url, _, engine = name.partition("=")
        own = folder / f"{url}.json"
        tensors = json.loads(own.read_text()) if own.is_file() else TENSORS
        endpoint = ModelEndpoint(
            engine_type=engine or "triton", serving_url=url, **({} if engine else tensors)
        )
        session.add_endpoint(endpoint, preprocess_code=str(folder / f"{url}.py"))
    session.serialize()
    sys.stdout.write(f"id={session.get_id()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
