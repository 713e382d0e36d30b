"""One trained model for every side: its Hugging Face folder, and bundles of it for our engines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.conversion.encoder import ConvertRequest, convert
from transformer_serving.desk.demo import (
    CLASSIFIER,
    encoder_folder,
    models_hash,
    sentences_file,
    sentiment,
)
from transformer_serving.desk.demo.kept import Recipe, bring_up_to_date
from transformer_serving.desk.step_report import StepReport

# What runs the model in Triton, by the name of its bundle's folder; precision None: by the CPU.
ENGINES = {"openvino": ("openvino", None), "onnxruntime": ("onnxruntime", "fp32")}
# Of check-gpu alone, where each has a stack to itself.
TORCH_TEXT, TENSORRT = "torch_text", "tensorrt"
ENGINE_TITLES = {
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    TORCH_TEXT: "PyTorch",
    TENSORRT: "TensorRT",
}


@dataclass(frozen=True)
class Models:
    """The folder that transformers loads, and the bundles by engine."""

    hugging_face: Path
    bundles: dict[str, Bundle]

    @property
    def tokenizer_json(self) -> Path:
        """The same in every bundle."""
        return next(iter(self.bundles.values())).folder / "tokenizer.json"

    def title(self, engine: str) -> str:
        """For a table: 'OpenVINO bf16'."""
        return f"{ENGINE_TITLES[engine]} {self.bundles[engine].manifest.precision}"


def build_models(target: Path, report: StepReport) -> Models:
    """Train and convert into `target`, or find it there made from the same sources."""
    recipe = Recipe(tuple(ENGINES), models_hash(None), partial(_build, report=report))
    bring_up_to_date(target, recipe, report)
    return Models(target / "hugging_face", {name: open_bundle(target / name) for name in ENGINES})


def _build(target: Path, report: StepReport) -> None:
    report("training the model")
    folder = target / "hugging_face"
    sentiment.train(encoder_folder(), sentiment.read_sentences(sentences_file()), folder)
    for name, (engine, precision) in ENGINES.items():
        report(f"converting for {engine}")
        request = ConvertRequest(str(folder), engine=engine, precision=precision, name=CLASSIFIER)
        convert(request, target / name, lambda step, detail: None)
