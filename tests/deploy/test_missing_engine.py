"""What the embedded stack's environment cannot run is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stack.small_bundles import Parts, write_small
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.deploy import endpoint
from transformer_serving.desk.deploy.endpoint import deploy
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure


# Its bundle's file is written by torch.
@pytest.mark.slow
def test_without_pytorch_what_to_install_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_small(tmp_path / "bundle", Parts(engine="torch"))
    # Nobody is asked: every address is one where nobody listens.
    nowhere = "http://127.0.0.1:9"
    target = DeployTarget(
        ClearmlCli({}, "0" * 32), nowhere, nowhere, tmp_path / "lock", triton="2.51.0"
    )
    monkeypatch.setattr(endpoint, "installed", lambda name: None)
    with pytest.raises(Failure) as refused:
        deploy(target, bundle, "x", timeout_s=5, report=lambda line: None)
    assert "the embedded stack has no PyTorch; install it where Triton runs: " in str(refused.value)
    assert refused.value.exit_code == 2
