"""What `bundle` and `adopt` print: the bundle of an engine that was brought."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from transformer_serving.call_sizes import Range, call_sizes, ladder_of
from transformer_serving.contract.heads import TOKEN_ROLES
from transformer_serving.refusal import ConversionRefused


def bundle(source: Path, output: Path, *, as_json: bool, **given: Any) -> None:
    """Make the bundle of the engine file `source` and say so."""
    from transformer_serving.own_engine import write_own_bundle

    _said(write_own_bundle(own_engine(source, **given), output), output, as_json=as_json)


def adopt(endpoint: str, state: Path, output: Path, *, as_json: bool, **given: Any) -> None:
    """Make a bundle of the model that `endpoint` serves now and say so."""
    from transformer_serving.adoption import served_model
    from transformer_serving.own_engine import write_own_bundle

    with served_model(endpoint, state) as model:
        own = own_engine(model.file, tensors=model.tensors, name=endpoint, **given)
        done = write_own_bundle(own, output)
    _said(done, output, as_json=as_json)


def _said(done: Any, output: Path, *, as_json: bool) -> None:
    manifest = done.manifest
    values = {
        "bundle": str(output),
        "bundle_version": manifest.bundle_version,
        "task": manifest.task,
        "engine": manifest.engine,
        "precision": manifest.precision,
        "golden": {"request": manifest.golden.request, "answer": manifest.golden.answer},
    }
    if as_json:
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    click.echo(
        f"bundle {manifest.bundle_version} for {manifest.task} in {output} ({manifest.engine}, "
        f"{manifest.precision}); {manifest.parity['unverified']}\n"
        f"its golden answer: {json.dumps(manifest.golden.answer, ensure_ascii=False)[:300]}\n"
        f"serve it: transformer-serving deploy {output} --endpoint NAME"
    )


def own_engine(
    file: Path,
    *,
    text: str,
    labels: str | None,
    answer: str | None,
    role: Sequence[str],
    input_tensor: Sequence[str] = (),
    output_tensor: Sequence[str] = (),
    seq_len: Range | None,
    batch: Range | None,
    max_length: int | None,
    tensors: Any = None,
    wanted: str | None = None,
    **others: Any,
) -> Any:
    """The options as an OwnEngine. Raises ConversionRefused."""
    from transformer_serving.engine_tensors import EngineTensors, parse_tensor
    from transformer_serving.own_engine import OwnEngine, engine_of

    if input_tensor or output_tensor:
        tensors = EngineTensors(
            tuple(parse_tensor("--input-tensor", one, (-1,)) for one in input_tensor),
            tuple(parse_tensor("--output-tensor", one, ()) for one in output_tensor),
        )
    return OwnEngine(
        file=file,
        body=_json("--text", text) if text.lstrip().startswith("{") else {"text": text},
        answer=None if answer is None else _json("--answer", answer),
        labels=tuple(name.strip() for name in (labels or "").split(",") if name.strip()),
        roles=dict(map(_role, role)),
        sizes=call_sizes(ladder_of((engine_of(file),)), seq_len, batch, max_length),
        tensors=tensors,
        output=wanted,
        **others,
    )


def _role(text: str) -> tuple[str, str]:
    name, _, role = text.rpartition("=")
    if not name or role not in TOKEN_ROLES:
        raise ConversionRefused(
            f"--role must be NAME=ROLE, such as x=input_ids, with one of {', '.join(TOKEN_ROLES)}"
        )
    return name, role


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConversionRefused(f"{option} is not valid JSON") from error
