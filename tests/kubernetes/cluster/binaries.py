"""The programs of a cluster, in a folder below build/ that is made once for each version.

Debian 12's source package is built with Debian's own Go; etcd and kubectl are the next Debian's
packages. `python -m tests.kubernetes.cluster.binaries` says what it does; on two cores it takes a
quarter of an hour, and nothing where the folder is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from scripts.generated_part import take_no_options
from tests.compose.machine import ROOT, fetch, fetch_source

VERSION = "1.20.2"
# Debian gives no newer servers; of kubectl and etcd the next release's are one file each.
_SUITE, _NEXT_SUITE = "bookworm", "trixie"
_GO = "1.19"
FOLDER = ROOT / "build" / "kubernetes" / VERSION
SERVERS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
)  # fmt: skip
_PACKAGE = "k8s.io/kubernetes"
# Where the API's types lie that openapi-gen describes, and what of it no server has.
_TYPES = ("staging/src/k8s.io", "pkg", "cmd")
_NOT_SERVED = ("code-generator", "sample-apiserver", "sample-controller", "testdata")


def binaries() -> Path:
    """The folder with every program; what is missing is fetched or built first."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, package in (("etcd", "etcd-server"), ("kubectl", "kubectl")):
        if not (FOLDER / name).exists():
            _say(f"fetch {name}")
            unpacked = fetch(_NEXT_SUITE, FOLDER / "package", package)
            shutil.copy(unpacked / "usr" / "bin" / name, FOLDER / name)
            shutil.rmtree(FOLDER / "package")
    missing = [name for name in SERVERS if not (FOLDER / name).exists()]
    if missing:
        _build(missing)
    return FOLDER


def _build(names: list[str]) -> None:
    """In a scratch folder, which an interrupted build leaves to the next."""
    scratch = FOLDER / "scratch"
    compiler = Compiler(scratch)
    if not (scratch / "fetched").exists():
        _fetch(scratch, compiler.source)
        (scratch / "fetched").touch()
    _say("describe the types of its API")
    compiler.describe_types()
    for number, name in enumerate(names, 1):
        began = time.monotonic()
        compiler.build(f"./cmd/{name}", scratch / name)
        (scratch / name).rename(FOLDER / name)
        _say(f"{name}: {number} of {len(names)}, {time.monotonic() - began:.0f} s")
    shutil.rmtree(scratch)


def _fetch(scratch: Path, source: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    _say(f"fetch Go {_GO}")
    fetch(_SUITE, scratch / "go", f"golang-{_GO}-go", f"golang-{_GO}-src")
    _say(f"fetch the source of Kubernetes {VERSION}")
    source.parent.mkdir(parents=True)
    shutil.move(fetch_source(_SUITE, scratch / "source", "kubernetes"), source)


class Compiler:
    """Go on the unpacked source, outside a module: its vendor folder is of an older layout."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.source = scratch / "gopath" / "src" / _PACKAGE
        root = scratch / "go" / "unpacked" / "usr" / "lib" / f"go-{_GO}"
        self._program = root / "bin" / "go"
        self._environment = {
            **os.environ, "GOROOT": str(root), "GOPATH": str(scratch / "gopath"),
            "GOCACHE": str(scratch / "cache"), "GO111MODULE": "off", "CGO_ENABLED": "0",
            # Without the clients of all clouds, a third of what there is to compile.
            "GOFLAGS": "-tags=providerless",
        }  # fmt: skip

    def build(self, package: str, target: Path) -> None:
        major, minor, _ = VERSION.split(".")
        said = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
        flags = ["-s", "-w"]
        for part in ("component-base/version", "client-go/pkg/version"):
            place = f"{_PACKAGE}/vendor/k8s.io/{part}"
            flags += [f"-X {place}.{name}={value}" for name, value in said.items()]
        self._run(
            str(self._program), "build", "-o", str(target), "-ldflags", " ".join(flags), package
        )

    def describe_types(self) -> None:
        """Debian's package leaves out what `make generated_files` makes; the server needs it."""
        generator = self._scratch / "openapi-gen"
        self.build("./vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator)
        self._run(
            str(generator), "--output-file-base=zz_generated.openapi",
            "--go-header-file=hack/boilerplate/boilerplate.generatego.txt",
            f"--output-package={_PACKAGE}/pkg/generated/openapi",
            f"--input-dirs={','.join(self._described())}",
            f"--report-filename={self._scratch / 'violations'}",
            f"--output-base={self._scratch / 'gopath' / 'src'}",
        )  # fmt: skip

    def _described(self) -> list[str]:
        """The import paths of all packages that ask to be described."""
        found = set()
        for part in _TYPES:
            for file in (self.source / part).rglob("*.go"):
                folder = file.parent.relative_to(self.source).as_posix()
                passed = file.name.endswith("_test.go") or any(one in folder for one in _NOT_SERVED)
                if not passed and b"+k8s:openapi-gen=" in file.read_bytes():
                    # Staged packages are imported from the vendor folder, by links.
                    found.add(f"{_PACKAGE}/{folder.replace('staging/src/', 'vendor/', 1)}")
        return sorted(found)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            ["nice", *command], cwd=self.source, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)[:300]}\n{done.stdout[-4000:]}"


def _say(line: str) -> None:
    print(f"kubernetes: {line}", flush=True)  # noqa: T201 - a quarter of an hour needs a sign


if __name__ == "__main__":
    take_no_options(__doc__)
    binaries()
