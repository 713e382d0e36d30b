"""Creates a serving service with this folder's endpoints, and prints its id.

One process through clearml-serving's own classes: the command line would need one for each line.
"""

import sys
from pathlib import Path

from clearml_serving.serving.endpoints import CanaryEP, ModelEndpoint
from clearml_serving.serving.model_request_processor import ModelRequestProcessor

HERE = Path(__file__).parent
TENSORS = {
    "input_size": [[1]], "input_type": ["int32"], "input_name": ["a"],
    "output_size": [[1]], "output_type": ["float32"], "output_name": ["b"],
}  # fmt: skip


def main(folder: Path) -> None:
    session = ModelRequestProcessor(force_create=True, name="gateway tests")
    for name, version, engine, file in (
        ("ours", None, "triton", "ours.py"),
        ("ours", "2", "triton", "ours.py"),
        ("updated", None, "triton", "ours.py"),
        ("other", None, "custom_async", "other.py"),
        ("broken", None, "triton", "broken.py"),
    ):
        # Uploads are told apart by their file's name.
        copy = folder / f"{name}{version or ''}.py"
        copy.write_text((HERE / file).read_text())
        endpoint = ModelEndpoint(
            engine_type=engine,
            serving_url=name,
            version=version,
            **(TENSORS if engine == "triton" else {}),
        )
        session.add_endpoint(endpoint, preprocess_code=str(copy))
    for name, targets in (("split", ["ours", "ours/2"]), ("mixed", ["ours", "other"])):
        session.add_canary_endpoint(
            CanaryEP(endpoint=name, weights=[0.5, 0.5], load_endpoints=targets)
        )
    session.serialize()
    sys.stdout.write(f"id={session.get_id()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
