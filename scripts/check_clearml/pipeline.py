"""A pipeline of two steps, the second of which registers and publishes a model."""

import sys

from clearml import Model, PipelineController

PROJECT, MODEL = sys.argv[1:] if len(sys.argv) == 3 else ("", "")


def make(factor: int) -> int:
    """The first step: a value for the next."""
    return 10 * factor


def register(value: int, name: str) -> str:
    """The second step: a published model whose file holds the value."""
    from pathlib import Path

    from clearml import OutputModel, Task

    path = Path(f"factor-{value}.txt")
    path.write_text(str(value))
    model = OutputModel(task=Task.current_task(), name=name, framework="PyTorch")
    model.update_weights(str(path), auto_delete_file=False, async_enable=False)
    model.publish()
    return model.id


def main() -> None:
    pipeline = PipelineController(name="pipeline", project=PROJECT, version="1.0.0",
                                  add_pipeline_tags=False)  # fmt: skip
    pipeline.add_function_step("make", make, function_kwargs={"factor": 7},
                               function_return=["value"])  # fmt: skip
    pipeline.add_function_step("register", register, parents=["make"],
                               function_kwargs={"value": "${make.value}", "name": MODEL},
                               function_return=["model"])  # fmt: skip
    pipeline.start_locally(run_pipeline_steps_locally=True)
    pipeline.stop()
    found = Model.query_models(model_name=MODEL, only_published=True)
    assert found, "the pipeline registered no model"
    print("PIPELINE", found[0].id)  # noqa: T201


if __name__ == "__main__":
    main()
