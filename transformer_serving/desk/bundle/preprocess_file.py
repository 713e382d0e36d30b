"""The self-contained preprocess.py of a bundle: loader, zipped packages, endpoint and tokenizer."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import preprocess
import transformer_serving
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.identity import (
    ENDPOINT,
    PARTS,
    TOKENIZER,
    Identity,
    code_digest,
    identity_of,
    own_parts,
)

# Read, never imported: without its constants filled in it has nothing to load.
_LOADER = Path(__file__).with_name("preprocess_loader.py")
_IMPORT = re.compile(r"^(\s*)from (transformer_serving|preprocess)\b", re.MULTILINE)
_PLAIN_IMPORT = re.compile(r"^\s*import (transformer_serving|preprocess)\b", re.MULTILINE)
_FROM = re.compile(r"^from ((?:transformer_serving|preprocess)\.[\w.]+) import", re.MULTILINE)
# Equal sources must give equal bytes: a zip entry's own time would change the hash.
_TIME = (1980, 1, 1, 0, 0, 0)


def build(endpoint_json: str, tokenizer_json: bytes, parts: Mapping[str, str] | None = None) -> str:
    """The text of preprocess.py; `parts` are the model's files by their hashes.

    Raises ContractError when endpoint.json breaks its contract.
    """
    endpoint = read_endpoint(endpoint_json)
    data = {
        ENDPOINT: endpoint_json.encode(),
        TOKENIZER: tokenizer_json,
        PARTS: json.dumps(dict(parts or {}), sort_keys=True).encode(),
    }
    return _text(endpoint.bundle_version, endpoint.task, _zip(data))


def identity(
    endpoint_json: str, task: str, tokenizer_json: bytes, parts: Mapping[str, str]
) -> Identity:
    """Number and hash of the bundle that `build` will write the preprocess.py of."""
    code = code_digest(_text(0, task, b"").encode())
    return identity_of({**parts, **own_parts(endpoint_json.encode(), tokenizer_json, code)})


def _text(version: int, task: str, data: bytes) -> str:
    return (
        "# preprocess.py of a transformer-serving bundle. Generated: change the sources instead.\n"
        f"# bundle-version: {version}\n"
        f"# task: {task}\n" + _fill(_loader(), code_hash(), _code_zip(), data)
    )


@cache
def code_hash() -> str:
    """12 hex digits over the loader and every packaged source file."""
    return hashlib.sha256(_loader().encode() + _code_zip()).hexdigest()[:12]


def _sources() -> Iterator[tuple[str, str]]:
    """The sources as the file carries them: absolute imports of ours made relative."""
    for name, path in sorted(_needed().items()):
        yield name, _relative_imports(Path(name), path.read_text("utf-8"))


def _needed() -> dict[str, Path]:
    """All of preprocess, and of the contract what that imports, directly or not.

    With a module goes the __init__.py of every package around it.
    """
    every = dict(_packable())
    todo = {name for name in every if name.startswith("preprocess/")}
    needed: set[str] = set()
    while todo:
        name = todo.pop()
        needed.add(name)
        modules = _FROM.findall(every[name].read_text("utf-8"))
        wanted = {f"{module.replace('.', '/')}.py" for module in modules}
        wanted |= {f"{folder.as_posix()}/__init__.py" for folder in Path(name).parents}
        todo |= (wanted & every.keys()) - needed
    return {name: every[name] for name in needed}


def _packable() -> Iterator[tuple[str, Path]]:
    """What may be packed, by its name in the zip, which is that of its module."""
    ours, packed = Path(transformer_serving.__path__[0]), Path(preprocess.__path__[0])
    for path in (ours / "__init__.py", *(ours / "contract").rglob("*.py")):
        yield path.relative_to(ours.parent).as_posix(), path
    for path in packed.rglob("*.py"):
        yield path.relative_to(packed.parent).as_posix(), path


def _relative_imports(path: Path, source: str) -> str:
    """Rewrite `from preprocess...` to the relative form from the file's place in the zip."""
    if _PLAIN_IMPORT.search(source):
        raise ValueError(f"{path}: write 'from ... import ...' for packages of ours")
    dots = "." * (len(path.parts))
    return _IMPORT.sub(rf"\1from {dots}\2", source)


@cache
def _code_zip() -> bytes:
    return _zip({name: text.encode() for name, text in _sources()})


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()


def _loader() -> str:
    return _LOADER.read_text("utf-8")


def _fill(loader: str, digest: str, code: bytes, data: bytes) -> str:
    values = {"CODE_HASH": digest, "CODE": _encode(code), "DATA": _encode(data)}
    for name, value in values.items():
        loader = loader.replace(f'\n{name} = ""\n', f'\n{name} = "{value}"\n', 1)
    return loader


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
