"""What the auto-update endpoint runs: the file of the model is a number, so is the answer."""

from pathlib import Path
from typing import Any


class Preprocess:
    def load(self, local_file_name: str) -> int:
        self.value = int(Path(local_file_name).read_text())
        return self.value

    def process(self, data: Any, state: dict[str, Any], collect: Any = None) -> dict[str, int]:
        return {"value": self.value * data["x"]}
