"""The check of what the embedded control plane stores.

Tested by tests/local/test_backup.py.
"""

from __future__ import annotations

from transformer_serving.control_plane import integrity
from transformer_serving.desk.doctor.finding import Findings, failure, ok, skipped
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.local.parts import control_plane_data


def check_data(subject: Subject) -> Findings:
    folder = control_plane_data(subject.state)
    if subject.from_file or not (folder / integrity.DATABASE).exists():
        yield skipped("no embedded control plane has stored anything here")
        return
    why = integrity.fault(folder)
    if why is not None:
        what, _, fix = why.partition(" Fix: ")
        yield failure(what, fix)
        return
    damaged = list(integrity.file_damage(folder))
    for one in damaged:
        yield failure(str(one), "deploy that bundle again, or restore a backup that has it")
    if not damaged:
        yield ok(f"the database and the models' files in {folder} can be read")
