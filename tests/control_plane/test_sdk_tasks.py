"""What the unmodified SDK reports, copies and finds, as a real ClearML server keeps it."""

from __future__ import annotations

from tests.control_plane.sdk_runs import RunSdk, good


def test_all_images_of_one_series_and_iteration_are_kept(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    script = """
        import numpy as np
        from clearml import StorageManager, Task
        task = Task.init("Sdk images", "images", auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        for shade in (0, 100, 200):
            image = np.full((8, 8, 3), shade, np.uint8)
            task.get_logger().report_image("debug", "sample", iteration=1, image=image)
        task.flush(wait_for_uploads=True)
        task.close()
        samples = Task.get_task(task.id).get_debug_samples("debug", "sample")
        urls = [sample["url"] for sample in samples]
        assert len(set(urls)) == len(urls) == 3, urls
        assert all(StorageManager.get_local_copy(url) for url in urls)
    """
    good(run_sdk(script, **threaded))


def test_a_task_whose_parent_was_deleted_is_copied(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    script = """
        from clearml import Task
        first = Task.create(project_name="Sdk copies", task_name="first")
        second = Task.clone(first, name="second")
        assert second.parent == first.id
        assert first.delete()
        second.reload()
        assert second.parent == f"__DELETED__{first.id}"
        assert Task.clone(second, name="third").parent == second.parent
        imported = Task.import_task({**second.export_task(), "name": "fourth"})
        assert imported is not None and imported.parent == second.parent
    """
    good(run_sdk(script, **threaded))


def test_the_best_of_an_optimizer_are_none_that_never_told_a_figure(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    script = """
        from clearml import Task
        from clearml.automation.optimization import Objective
        made = [Task.create(project_name="Sdk best", task_name=name)
                for name in ("parent", "silent", "worse", "better")]
        parent, silent, *told = made
        for child in made[1:]:
            child.set_parent(parent)
        for task, loss in zip(told, (0.5, 0.1)):
            task.mark_started()
            task.get_logger().report_scalar("loss", "train", loss, 1)
            task.flush(wait_for_uploads=True)
            task.mark_completed()
        top = Objective("loss", "train", "min").get_top_tasks(2, optimizer_task_id=parent.id)
        assert [task.name for task in top] == ["better", "worse"], top
        found = Task.query_tasks(project_name="Sdk best", task_filter={"order_by": ["started"]})
        assert found[:2] == [task.id for task in told]
    """
    good(run_sdk(script, **threaded))


def test_a_copy_goes_where_its_source_went_and_is_no_run_of_a_script(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    script = """
        from clearml import Task
        task = Task.init("Sdk copies", "source", output_uri=True, auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        task.close()
        source = Task.get_task(task.id)
        source.set_archived(True)
        source.reload()
        assert set(source.get_system_tags()) == {"archived", "development"}
        copy = Task.clone(source)
        assert copy.name == "source"
        assert list(copy.get_system_tags()) == []
        assert copy.output_uri == source.output_uri != ""
    """
    good(run_sdk(script, **threaded))


def test_the_last_value_is_of_the_last_report_also_where_iterations_begin_anew(
    run_sdk: RunSdk, threaded: dict[str, str]
) -> None:
    script = """
        from clearml import Task
        task = Task.init("Sdk values", "two phases", auto_resource_monitoring=False,
                         auto_connect_frameworks=False)
        for value, iterations in ((0.9, (0, 50)), (0.1, (0,))):
            for iteration in iterations:
                task.get_logger().report_scalar("loss", "train", value, iteration)
            task.flush(wait_for_uploads=True)
        task.close()
        loss = Task.get_task(task.id).get_last_scalar_metrics()["loss"]["train"]
        assert (loss["last"], loss["min"], loss["max"]) == (0.1, 0.1, 0.9), loss
    """
    good(run_sdk(script, **threaded))


def test_a_search_finds_any_of_its_words(run_sdk: RunSdk) -> None:
    script = """
        from clearml import Task
        for name in ("base bert", "a roberta", "other"):
            Task.create(project_name="Sdk search", task_name=name, script="train_bert.py",
                        repo="https://host/team/repo.git", branch="main", commit="1")

        def found(text):
            ids = Task.query_tasks(project_name="Sdk search", task_filter={"search_text": text})
            return sorted(Task.get_task(one).name for one in ids)

        assert found("bert base") == found("missing bert") == ["base bert"]
        assert found('"bert base"') == []
        assert found('"base bert"') == ["base bert"]
        assert found("team") == ["a roberta", "base bert", "other"]
        assert found("team -roberta") == ["base bert", "other"]
    """
    good(run_sdk(script))
