"""What clearml-serving's command line prints of an upload that the file server did not take."""

from __future__ import annotations

import pytest

from transformer_serving.desk.clearml_tools.cli import upload_refusal

HEAD = "Uploading model file 'model' to http://127.0.0.1:8008/bundles/a\n"
TAIL = "Model created and registered, new Model ID=df8f27aaebf5415ab39d83a2a9c883ff\n"
LINE = "2026-11-22 03:50:34,164 - clearml.storage - ERROR - Exception encountered while uploading "
ENVELOPE = '{"meta":{"result_code":500,"result_subcode":4,"result_msg":"insufficient disk space"}}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", None),
        (
            f"{LINE}Failed uploading object /bundles/a/model.zip to http://a (500): {ENVELOPE}\n",
            "the file server answered 500, insufficient disk space",
        ),
        (f"{LINE}Access Denied\n", "Access Denied"),
    ],
)
def test_an_upload_that_was_not_taken_is_told(line: str, said: str | None) -> None:
    assert upload_refusal(HEAD + line + TAIL) == said
