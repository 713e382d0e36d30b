"""versions.toml, read and checked.

Tested by tests/test_versions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomllib

from transformer_serving.contract.engine_parameters import VLLM
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.gate.server_facts import ServerFacts
from transformer_serving.desk.failure import Failure

SCHEMA = 1
# Inside the package: an installed wheel has no other place of its own.
LOCK_FILE = Path(__file__).with_name("versions.toml")


@dataclass(frozen=True)
class EmbeddedPin:
    """The tritonserver of the embedded stack."""

    release: str
    triton: str
    nvidia_pytriton: str
    tested_by: str


@dataclass(frozen=True)
class ImagePin:
    """The Triton image of compose and Kubernetes, and what is inside it."""

    release: str
    image: str
    triton: str
    tensorrt: str
    cuda: str
    driver_min: str
    onnxruntime: str
    python: str
    tritonclient: str
    tested_by: str


@dataclass(frozen=True)
class VllmPin:
    """The Triton image with the vLLM backend, of compose/vllm.yaml."""

    release: str
    image: str
    triton: str
    vllm: str
    cuda: str
    driver_min: str
    python: str
    tested_by: str


@dataclass(frozen=True)
class Pin:
    """A package's version or an image's name."""

    value: str
    tested_by: str


@dataclass(frozen=True)
class Lock:
    """The whole of versions.toml; `python` are the minor versions of the desk."""

    embedded: EmbeddedPin
    image: ImagePin
    vllm_image: VllmPin
    packages: Mapping[str, Pin]
    base_images: Mapping[str, Pin]
    python: tuple[str, ...]
    python_tested_by: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def facts(self, engine: str = "") -> ServerFacts:
        """What a bundle is measured against at the desk: the image pin, of no certain GPU; of
        engine vllm the pin of its own image."""
        if engine == VLLM:
            return ServerFacts(
                name=f"the vLLM image pin {self.vllm_image.release}",
                triton=self.vllm_image.triton,
                kit_version=kit_version(),
            )
        return ServerFacts(
            name=f"the image pin {self.image.release}",
            tensorrt=self.image.tensorrt,
            triton=self.image.triton,
            onnxruntime=self.image.onnxruntime,
            kit_version=kit_version(),
        )


def read_lock(path: Path = LOCK_FILE) -> Lock:
    """Raises Failure that names the field when the file is not as it must be."""
    try:
        return parse_lock(path.read_text("utf-8"))
    except (OSError, ContractError) as error:
        raise Failure(
            f"{path} cannot be read: {error}; take the file of this kit's release"
        ) from error


def parse_lock(text: str) -> Lock:
    """The lock in TOML text. Raises ContractError naming the field."""
    try:
        values = Fields("versions.toml", tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"versions.toml: {error}") from error
    values.number("schema", low=SCHEMA, high=SCHEMA)
    python = values.inner("python")
    return Lock(
        embedded=EmbeddedPin(**_texts(values.inner("embedded"), EmbeddedPin)),
        image=ImagePin(**_texts(values.inner("image"), ImagePin)),
        vllm_image=VllmPin(**_texts(values.inner("vllm_image"), VllmPin)),
        packages=_pins(values.inner("packages"), "version"),
        base_images=_pins(values.inner("base_images"), "image"),
        python=python.texts("versions"),
        python_tested_by=python.take("tested_by", str),
    )


def _texts(values: Fields, kind: type[EmbeddedPin | ImagePin | VllmPin]) -> dict[str, str]:
    return {field.name: values.take(field.name, str) for field in fields(kind)}


def _pins(values: Fields, field: str) -> dict[str, Pin]:
    rows = {name: values.inner(name) for name in values.values}
    return {
        name: Pin(row.take(field, str), row.take("tested_by", str)) for name, row in rows.items()
    }
