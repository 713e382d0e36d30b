"""Each module of the product has a test file of its name, or says where else it is tested."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("preprocess", "transformer_serving")
TESTED_BY = re.compile(r"^Tested by (tests/[\w/]+\.py(?:,? (?:and )?tests/[\w/]+\.py)*)\.$", re.M)
# It is the head of every generated preprocess.py and has no docstring.
LOADER = Path("transformer_serving/desk/bundle/preprocess_loader.py")
LOADED_BY = "tests/bundle/test_preprocess_file.py"


def modules() -> Iterator[Path]:
    """Those with code: a package's first file is often its docstring alone."""
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            if len(ast.parse(path.read_bytes()).body) > 1 or path.name != "__init__.py":
                yield path.relative_to(ROOT)


def of_its_name(module: Path) -> list[Path]:
    """test_NAME.py or test_FOLDER_NAME.py, in tests/ or in a folder of a name in its path."""
    is_package = module.name in ("__init__.py", "__main__.py")
    name = module.parent.name if is_package else module.stem
    names = {f"test_{name}.py", f"test_{module.parent.name}_{name}.py"}
    found = [path for one in names for path in (ROOT / "tests").rglob(one)]
    return [path for path in found if path.parent.name in {"tests", *module.parts[:-1]}]


def named_in(module: Path) -> list[str]:
    if module == LOADER:
        return [LOADED_BY]
    docstring = ast.get_docstring(ast.parse((ROOT / module).read_bytes())) or ""
    found = TESTED_BY.search(" ".join(docstring.split("\n\n")[-1].split()))
    return re.findall(r"tests/[\w/]+\.py", found[1]) if found else []


def test_every_module_has_a_test_of_its_name_or_names_one() -> None:
    untold = [str(one) for one in modules() if not of_its_name(one) and not named_in(one)]
    assert not untold, f"no tests/**/test_NAME.py, and no last line 'Tested by ...': {untold}"


def test_the_tests_that_are_named_are_there() -> None:
    named = {name: str(one) for one in modules() for name in named_in(one)}
    assert len(named) > 30
    gone = [name for name in named if not (ROOT / name).is_file() or "/test_" not in name]
    assert not gone, f"named by {[named[name] for name in gone]} and not there: {gone}"
