"""The bundles of an endpoint in ClearML's model registry: which were served, withdrawn or wrong.

`deploy` registers each bundle as the ClearML model "ENDPOINT VERSION" of the serving service, and
whole: the model folder, and in `.bundle/` what the inference container gets. Tags say how it went.

Tested by tests/stack/test_kept_bundles.py and tests/deploy/test_rollback.py.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_serving.contract.identity import DAMAGED_ARCHIVE
from transformer_serving.contract.naming import BUNDLE_FOLDER
from transformer_serving.desk.builders.files import link_or_copy
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.deploy.registered_files import unpack_registered
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.scratch import scratch_beside

SERVED, WITHDRAWN, WRONG = "served", "rolled-back", "answers-otherwise"
# Beside the others: what a rollback leaves, until the bundle that is asked for instead has
# answered; and what it goes to, for as long as one that was interrupted may go on with it.
LEAVING, GOAL = "rolling-back", "rolling-to"
_TAGS = (SERVED, WITHDRAWN, WRONG, LEAVING, GOAL)
# The SDK's names of an upload that has not ended, or not well.
_UNFINISHED = ("", "uploading_file", "failed_uploading")
_PAGE = 500


@dataclass(frozen=True)
class Registered:
    """A bundle in the registry; `tags` has SERVED once its golden request answered, WRONG once that
    was answered otherwise than is recorded, and LEAVING or GOAL while a rollback is not over.
    """

    model_id: str
    bundle_version: int
    uri: str
    tags: tuple[str, ...]


class ModelRegistry:
    """The models of one serving service."""

    def __init__(self, api: ClearmlApi, serving_id: str) -> None:
        self._api = api
        self._serving_id = serving_id

    def bundles(self, endpoint: str) -> list[Registered]:
        """Every bundle that was deployed as the endpoint, the newest first."""
        found = self._api.call(
            "models.get_all",
            name=f"^{re.escape(endpoint)} [0-9]+$",
            task=[self._serving_id],
            order_by=["-created"],
            only_fields=["id", "name", "uri", "tags"],
            page=0,
            page_size=_PAGE,
        )
        return [
            Registered(
                row["id"],
                int(row["name"].rsplit(" ", 1)[1]),
                row.get("uri") or "",
                tuple(row.get("tags") or ()),
            )
            for row in found["models"]
        ]

    def has_address(self, model_id: str) -> bool:
        """False where a model still names what it is called while its file is on the way."""
        rows = self._api.call("models.get_all", id=[model_id], only_fields=["uri"])["models"]
        names = [str(row.get("uri") or "").rsplit("/", 1)[-1] for row in rows]
        return bool(names) and names[0] not in _UNFINISHED

    def forget(self, model_id: str) -> None:
        self._api.call("models.delete", model=model_id, force=True)

    def mark_served(self, endpoint: str, version: int) -> None:
        """The newest registration of that bundle, which is asked for, has answered its golden
        request. So every rollback of the endpoint is over: what they left is withdrawn.
        """
        rows = self.bundles(endpoint)
        left = leaving(rows) - {version}
        answering = [row for row in rows if row.bundle_version == version]
        for row in rows:
            if row.bundle_version in left:
                self._tag([row], WITHDRAWN)
            elif row.bundle_version != version:
                self._strip(row, GOAL)
        # Last: where this is interrupted, the next rollback goes on with it.
        self._tag(answering[:1], SERVED)
        for row in answering[1:]:
            self._strip(row, LEAVING, GOAL)

    def mark_wrong(self, endpoint: str, version: int) -> None:
        """The newest registration of that bundle answers otherwise than it must."""
        self._tag(self._of(endpoint, version)[:1], WRONG)

    def mark_begun(self, left: Registered | None, to: Registered) -> None:
        """A rollback begins: one that is interrupted is known by its goal."""
        if left is not None:
            self._edit(left, [*left.tags, LEAVING])
        self._edit(to, [*to.tags, GOAL])

    def mark_given_up(self, endpoint: str, version: int) -> None:
        """The bundle has not come to answer: the next rollback does not wait for it again."""
        for row in self._of(endpoint, version):
            self._strip(row, GOAL)

    def _of(self, endpoint: str, version: int) -> list[Registered]:
        return [row for row in self.bundles(endpoint) if row.bundle_version == version]

    def _tag(self, rows: Iterable[Registered], tag: str) -> None:
        for row in rows:
            self._edit(row, [*(name for name in row.tags if name not in _TAGS), tag])

    def _strip(self, row: Registered, *tags: str) -> None:
        self._edit(row, [name for name in row.tags if name not in tags])

    def _edit(self, row: Registered, tags: list[str]) -> None:
        if set(tags) != set(row.tags):
            self._api.call("models.edit", model=row.model_id, tags=tags)

    @contextmanager
    def fetched(self, row: Registered) -> Iterator[Bundle]:
        """The bundle as it was deployed, verified. Raises Failure when it is not whole any more."""
        with TemporaryDirectory(prefix="transformer-serving-") as scratch:
            archive, folder = Path(scratch) / "model.zip", Path(scratch) / "fetched"
            self._api.download(row.uri, archive)
            try:
                unpack_registered(archive, folder)
            except DAMAGED_ARCHIVE as error:
                raise Failure(
                    f"model {row.model_id} is no bundle that 'deploy' registered: {error}"
                ) from error
            yield open_bundle(folder)


def split(rows: Sequence[Registered], model_id: str) -> tuple[Registered | None, Registered | None]:
    """The present registration and the newest older one of another bundle that was served, of rows
    from newest to oldest.

    What was rolled back from has lost its mark, or is still being left, so a second rollback goes
    one further, and one after a new deploy does not meet the bundle that was withdrawn.
    """
    at = next((at for at, row in enumerate(rows) if row.model_id == model_id), -1)
    present = rows[at] if at >= 0 else None
    passed = leaving(rows) | ({present.bundle_version} if present else set())
    others = (row for row in rows[at + 1 :] if row.bundle_version not in passed)
    return present, next((row for row in others if SERVED in row.tags), None)


def leaving(rows: Sequence[Registered]) -> set[int]:
    """The bundles that rollbacks left and have yet to withdraw, in all their registrations."""
    return {row.bundle_version for row in rows if LEAVING in row.tags}


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Beside the bundle, where second names cost nothing; elsewhere if nothing can be written."""
    with ExitStack() as stack:
        try:
            place = stack.enter_context(scratch_beside(folder, ".upload-"))
        except OSError:
            elsewhere = TemporaryDirectory(prefix="transformer-serving-")
            place = Path(stack.enter_context(elsewhere))
        yield place


@contextmanager
def registry_folder(bundle: Bundle) -> Iterator[Path]:
    """The folder that is uploaded for a bundle: its model/, with its other files in .bundle/."""
    with _scratch(bundle.folder) as scratch:
        folder = scratch / "model"
        shutil.copytree(bundle.model_folder, folder, copy_function=link_or_copy)
        (folder / BUNDLE_FOLDER).mkdir()
        for path in bundle.folder.iterdir():
            if path.is_file():
                link_or_copy(path, folder / BUNDLE_FOLDER / path.name)
        yield folder
