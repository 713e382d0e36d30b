"""Triton's model repository on disk: prepared aside, put in place by renames, undone the same way.

A version's files lie in `.versions/<model>/<token>` and never change; `<model>/<number>` is a
link to them. So putting a version in place, and putting the last good one back, is one rename
each, also for a model whose version number stays the same.

What the files cannot say is where they lie, and vLLM is told of its model's folder by path: there
the link names a folder beside the version's, `<token>.filled`, which has the arguments alone. Nor
do they know the machine's cores: thread_count.py.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from transformer_serving.contract.naming import BUNDLE_FOLDER
from transformer_serving.contract.replacement import replace_file, replacing, sync
from transformer_serving.contract.vllm.arguments import FILE_NAME as ARGUMENTS, filled_in
from transformer_serving.engine.controller.files.compiled import Compiled
from transformer_serving.engine.controller.files.room import Share
from transformer_serving.engine.controller.files.thread_count import with_threads
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import FILE_NAME

_STORE = ".versions"
_PART = ".part"
_FILLED = ".filled"
_FILE_OF_SUFFIX = {".onnx": "model.onnx", ".plan": "model.plan", ".pt": "model.pt"}
_FILE_OF_FRAMEWORK = {"onnx": "model.onnx", "tensorrt": "model.plan", "torch": "model.pt"}


class Repository:
    """The folder that Triton was started on; only what lies in `.versions` is ours to delete."""

    def __init__(self, root: Path, compiled: Compiled | None = None) -> None:
        self.root = root
        self._compiled = compiled
        self._store = root / _STORE
        self._store.mkdir(parents=True, exist_ok=True)
        # Copies that no record names yet.
        self._staged: set[str] = set()

    def stage(
        self, model: str, source: Path, framework: str, *, ours: bool = False,
        share: Share | None = None,
    ) -> str:  # fmt: skip
        """Copy a model file or folder; the token of the copy, which is on disk when this returns.

        It stays until it is released or discarded. Only what is `ours` may be moved, which takes no
        second room: with a file:// address the source is the user's own file. `share` hears where
        it comes to.
        """
        token = uuid.uuid4().hex
        part = self._store / model / f"{token}{_PART}"
        self._staged.add(token)
        if share is not None:
            share.lay(source, part)
        try:
            self._lay(source, part, framework, ours=ours)
            part.rename(self.files(model, token))
            sync(part.parent)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            self._staged.discard(token)
            raise
        self._keep_compiled(coming=1)
        return token

    def _lay(self, source: Path, part: Path, framework: str, *, ours: bool) -> None:
        part.mkdir(parents=True)
        if source.is_dir():
            if ours and _moved(source, part):
                shutil.rmtree(part / BUNDLE_FOLDER, ignore_errors=True)
            else:
                _copy_tree(source, part)
        elif source.is_file():
            place = part / _file_name(source, framework)
            if not (ours and _moved(source, place)):
                shutil.copyfile(source, place)
        else:
            raise EngineError(f"the model's local copy '{source.name}' is not there; upload again")
        _sync_tree(part)

    def alike(self, model: str, one: str, other: str) -> bool:
        """Whether two copies hold the same files, byte by byte."""
        first, second = self.files(model, one), self.files(model, other)
        names = _names(first)
        return names == _names(second) and all(
            filecmp.cmp(first / name, second / name, shallow=False) for name in names
        )

    def discard(self, model: str, token: str) -> None:
        """Delete a staged copy; one that is released stays."""
        if token in self._staged:
            shutil.rmtree(self.files(model, token), ignore_errors=True)
            self._staged.discard(token)

    def release(self, token: str) -> None:
        """The copy is held by a record now, or goes with what no record names."""
        self._staged.discard(token)

    def files(self, model: str, token: str) -> Path:
        return self._store / model / token

    def store(self, model: str) -> Path:
        return self._store / model

    def install(
        self, model: str, versions: Mapping[int, str], config: str, *, files_of: str | None = None
    ) -> None:
        """Make the model's folder hold exactly these versions (number to token) and this config.

        New versions come before the config that names them, old ones go after it. `files_of` is
        the model whose files they are, where it is another one.
        """
        folder = self.root / model
        # 0 where there is no folder yet: of such a model Triton remembers no time.
        before_ns = _newest_ns(folder)
        folder.mkdir(exist_ok=True)
        changed = [folder / FILE_NAME]
        for number, token in versions.items():
            owner = files_of or model
            target = PurePosixPath("..", _STORE, owner, self._filled(owner, token))
            if self._link(folder / str(number), target):
                changed.append(folder / str(number))
        self._write(folder / FILE_NAME, with_threads(config))
        for entry in folder.iterdir():
            if entry.is_symlink() and entry.name not in {str(number) for number in versions}:
                entry.unlink()
        for path in changed:
            _make_newer(path, before_ns)
        sync(folder)

    def remove(self, model: str) -> None:
        """Delete the model's folder and files, as far as they can be deleted."""
        self._withdraw(model)
        store = self._store / model
        if store.is_symlink():
            store.unlink()
        shutil.rmtree(store, ignore_errors=True)
        # Its room may be what the next one waits for.
        self._keep_compiled()

    def take_back(self, model: str, token: str) -> None:
        """Delete the model's folder and one copy of its files: a record that cannot be read may
        name the others."""
        self._withdraw(model)
        for name in (token, f"{token}{_FILLED}"):
            shutil.rmtree(self.files(model, name), ignore_errors=True)
        with contextlib.suppress(OSError):
            self.store(model).rmdir()

    def _keep_compiled(self, coming: int = 0) -> None:
        if self._compiled is not None:
            # Another model's folder may go while they are counted.
            with contextlib.suppress(OSError):
                filled = sum(1 for _ in self._store.glob(f"*/*{_FILLED}"))
                self._compiled.keep(filled + coming)

    def _withdraw(self, model: str) -> None:
        folder = self.root / model
        if folder.is_dir():
            for entry in folder.iterdir():
                if entry.is_symlink() or entry.name == FILE_NAME:
                    entry.unlink()
            # A user's own file in there stays, and the folder with it.
            if not any(folder.iterdir()):
                folder.rmdir()

    def clear_aside(self) -> None:
        """Delete what a crash left of files that were about to take another's place."""
        for entry in self._store.iterdir():
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()

    def keep_only(self, model: str, tokens: Iterable[str]) -> None:
        """Delete the files of the model's other versions, but none that are staged."""
        kept = {name for token in tokens for name in (token, f"{token}{_FILLED}")}
        folder = self._store / model
        for entry in list(folder.iterdir()) if folder.is_dir() else []:
            if entry.name not in kept and entry.name.partition(".")[0] not in self._staged:
                shutil.rmtree(entry, ignore_errors=True)

    def has_files(self, model: str, token: str) -> bool:
        return self.files(model, token).is_dir()

    def models(self) -> set[str]:
        """The models that have files of ours."""
        return {
            entry.name
            for entry in self._store.iterdir()
            if entry.is_dir() and not entry.is_symlink()
        }

    def _filled(self, model: str, token: str) -> str:
        """The name of the folder that Triton reads."""
        files = self.files(model, token)
        try:
            text = filled_in((files / ARGUMENTS).read_bytes(), str(files.absolute()))
        except FileNotFoundError:
            return token
        if text is None:
            return token
        folder = files.with_name(f"{token}{_FILLED}")
        folder.mkdir(exist_ok=True)
        self._write(folder / ARGUMENTS, text.decode())
        return folder.name

    def _link(self, path: Path, target: PurePosixPath) -> bool:
        """Whether it was another one, or none."""
        if path.is_symlink() and os.readlink(path) == str(target):
            return False
        with replacing(path, aside=self._store) as link:
            link.symlink_to(target)
        return True

    def _write(self, path: Path, text: str) -> None:
        if path.is_file() and path.read_text("utf-8") == text:
            return
        replace_file(path, text, aside=self._store, durable=True)


def _newest_ns(path: Path) -> int:
    """The newest time of a file or folder and of all in it, through links, as Triton reads it."""
    newest = 0
    for folder, _, names in os.walk(path, followlinks=True):
        for one in (folder, *(os.path.join(folder, name) for name in names)):
            with contextlib.suppress(OSError):
                found = os.stat(one)
                newest = max(newest, found.st_mtime_ns, found.st_ctime_ns)
    return newest


def _make_newer(path: Path, than_ns: int) -> None:
    """Triton loads a model, and a version that it has, only where the newest time has grown. After
    a clock was set back it has not by itself."""
    found = path.stat()
    if max(found.st_mtime_ns, found.st_ctime_ns) <= than_ns:
        # A whole second, as some file systems keep no parts of one. Only its owner may set it, and
        # what another user left is put back all the same.
        with contextlib.suppress(PermissionError):
            os.utime(path, ns=(found.st_atime_ns, than_ns + 1_000_000_000))


def _moved(source: Path, place: Path) -> bool:
    """Whether it could be. Of links a copy has the files, and what is neither file nor folder it
    refuses; another volume, and a folder that nobody may write to, are copied as well.
    """
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in (source, *source.rglob("*"))}
    if not kinds <= {stat.S_IFREG, stat.S_IFDIR}:
        return False
    try:
        source.rename(place)
    except OSError:
        return False
    return True


def _copy_tree(source: Path, part: Path) -> None:
    try:
        shutil.copytree(
            source,
            part,
            ignore=lambda folder, _: [BUNDLE_FOLDER] if Path(folder) == source else [],
            dirs_exist_ok=True,
            copy_function=shutil.copyfile,
        )
    except shutil.Error as error:
        # All files that were not copied; the first one's cause says enough.
        _, _, cause = error.args[0][0]
        raise OSError(cause) from None


def _file_name(source: Path, framework: str) -> str:
    """What Triton looks for: by the file's own ending, else by the ClearML framework label."""
    own = _FILE_OF_SUFFIX.get(source.suffix.lower())
    label = framework.lower()
    named = (name for key, name in _FILE_OF_FRAMEWORK.items() if key in label)
    return own or next(named, "model.bin")


def _names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            sync(Path(folder) / name)
        sync(Path(folder))
