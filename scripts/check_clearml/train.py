"""A training script: artifacts, scalars, plots, an output model with weights, an input model."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from clearml import InputModel, OutputModel, Task

project = sys.argv[1]
task: Any = Task.init(project, "training", output_uri=True, tags=["first"],
                 auto_connect_frameworks=False, auto_resource_monitoring=False)  # fmt: skip
task.connect({"rate": 0.1, "layers": 2})
task.connect_configuration({"a": 1}, name="settings")
task.set_user_properties(owner="me")
logger = task.get_logger()
for step in range(5):
    logger.report_scalar("loss", "train", 1.0 / (step + 1), step)
logger.report_scalar("loss", "nan", float("nan"), 1)
logger.report_single_value("accuracy", 0.9)
logger.report_table("table", "t", iteration=0, table_plot=[["a", "b"], [1, 2]])
logger.report_histogram("hist", "h", values=np.arange(4), iteration=0)
logger.report_text("a line of the log")
print("to be seen \udc80".encode("utf8", "replace").decode())  # noqa: T201
assert task.upload_artifact("numbers", artifact_object=np.arange(3), wait_on_upload=True)
assert task.upload_artifact("fields", artifact_object={"a": [1, 2]}, wait_on_upload=True)
Path("weights ü.bin").write_bytes(b"weights" * 1000)
output = OutputModel(task=task, name="out model", framework="PyTorch", tags=["mine"])
# In the background the SDK ends the upload with an edit that repeats the labels of its start.
output.update_weights("weights ü.bin", auto_delete_file=False, iteration=4, async_enable=False)
output.update_labels({"cat": 0, "dog": 1})
output.set_metadata("kind", "small", "str")
output.publish()
source = InputModel.import_model("http://example.invalid/x.bin", name="in model", project=project)
task.connect(source)
task.flush(wait_for_uploads=True)
task.close()
print("TASK", task.id, "MODEL", output.id)  # noqa: T201
