"""What other packages have inside and the product relies on: subclassed, patched or private.

No promise of theirs covers it, so each has an upper bound in pyproject.toml, and a release that
moves one of these names fails here, with the file of ours to look at. Names are read from the
packages' sources: none is imported.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


class Relied(NamedTuple):
    """`names` of a class, or of a file where `owner` is ''; a method with what it takes."""

    distribution: str
    file: str
    owner: str
    names: str
    by: str


_HOST = "clearml_serving/serving/model_request_processor.py"
_APP = "clearml_serving/serving/main.py"
_ENGINE = "clearml_serving/serving/preprocess_service.py"
# Its compiled part can only be read by how Granian's own server calls it.
_GRANIAN = "granian/server/mp.py"
_ITS_WORKER = (
    "worker_id, sock, ipc, runtime_threads, runtime_blocking_threads, blocking_threads, "
    "blocking_threads_idle_timeout, backpressure, http_mode, http1_settings, http2_settings, "
    "websockets, static_path, *ssl_ctx, metrics"
)
RELIED_ON = (
    Relied(
        "granian", "granian/_futures.py", "_CBSchedulerAIO",
        "__init__(loop,cb,aio_task,aio_tenter,aio_texit) _schedule_fn",
        "gateway/server/handover.py: how its thread hands a request to the loop",
    ),
    Relied(
        # Its compiled part is read by its stub.
        "uvloop", "uvloop/loop.pyi", "Loop",
        "call_soon_threadsafe(callback)",
        "gateway/server/handover.py: what Granian's thread calls in the loop may be answered there",
    ),
    Relied(
        "uvicorn", "uvicorn/protocols/http/httptools_impl.py", "HttpToolsProtocol",
        "connection_made(transport) connection_lost(exc) data_received(data) "
        "on_message_begin() on_headers_complete() on_message_complete() on_response_complete() "
        "loop transport cycle timeout_keep_alive timeout_keep_alive_task "
        "timeout_keep_alive_handler()",
        "control_plane/connections.py: what has asked and what waits",
    ),
    Relied(
        "uvicorn", "uvicorn/protocols/http/httptools_impl.py", "RequestResponseCycle",
        "response_complete",
        "control_plane/connections.py: whether the next of several requests is being answered",
    ),
    Relied(
        "granian", "granian/asgi.py", "LifespanProtocol",
        "__init__(callable) startup() shutdown() interrupt errored",
        "gateway/server/worker.py: the app's start and end",
    ),
    Relied(
        "granian", "granian/http.py", "HTTP1Settings",
        "header_read_timeout max_buffer_size",
        "gateway/server/http.py: a head's limits in time and bytes",
    ),
    Relied(
        "prometheus_client", "prometheus_client/mmap_dict.py", "MmapedDict",
        "__init__(filename,read_mode) read_all_values_from_file(filename) "
        "read_value(key) write_value(key,value,timestamp) close() "
        "_init_value(key) _used _capacity _f",
        "gateway/figures/counted_rows.py: what workers counted; gateway/figures/page.py: counts of "
        "those that have ended go into one file; gateway/figures/file.py: room before a value",
    ),
    Relied(
        "prometheus_client", "prometheus_client/mmap_dict.py", "",
        "_INITIAL_MMAP_SIZE",
        "gateway/figures/file.py: the room of a file that begins",
    ),
    Relied(
        "prometheus_client", "prometheus_client/values.py", "",
        "MmapedDict MultiProcessValue(process_identifier)",
        "gateway/figures/file.py: what takes its place, wherever a figure is written",
    ),
    Relied(
        "prometheus_client", "prometheus_client/values.py", "",
        "ValueClass values lock",
        "gateway/figures/departed.py: of numbers that are let go of none is left; the last two are "
        "read from the closure of MmapedValue.__init__",
    ),
    Relied(
        "prometheus_client", "prometheus_client/values.py", "MmapedValue",
        "__init__ _multiprocess _file _key",
        "gateway/figures/departed.py: a number's place in a file",
    ),
    Relied(
        "prometheus_client", "prometheus_client/values.py", "MutexValue",
        "_multiprocess",
        "gateway/figures/departed.py: without a folder of files no number is kept",
    ),
    Relied(
        "prometheus_client", "prometheus_client/metrics.py", "MetricWrapperBase",
        "_metrics _lock _labelnames _name",
        "gateway/figures/departed.py: a metric's rows",
    ),
    Relied(
        "prometheus_client", "prometheus_client/metrics.py", "Counter",
        "_value",
        "gateway/figures/departed.py: a row's numbers stand in it, as a Histogram's",
    ),
    Relied(
        "prometheus_client", "prometheus_client/metrics.py", "Gauge",
        "_value",
        "gateway/figures/departed.py: the same",
    ),
    Relied(
        "prometheus_client", "prometheus_client/registry.py", "CollectorRegistry",
        "_collector_to_names",
        "gateway/figures/departed.py: the process's metrics",
    ),
    Relied(
        "prometheus_client", "prometheus_client/mmap_dict.py", "",
        "mmap_key(metric_name,name,labelnames,labelvalues,help_text)",
        "gateway/figures/counted_rows.py: keys of rows that no worker has written yet",
    ),
    Relied(
        "prometheus_client", "prometheus_client/utils.py", "",
        "floatToGoString(d)",
        "gateway/figures/counted_rows.py: numbers as Prometheus writes them",
    ),
    Relied(
        "prometheus_client", "prometheus_client/multiprocess.py", "MultiProcessCollector",
        "merge(files,accumulate)",
        "gateway/figures/page.py and preprocess/metrics_port.py: all workers' figures together",
    ),
    Relied(
        "prometheus_client", "prometheus_client/metrics.py", "Histogram",
        "_buckets _sum",
        "contract/worker/durations.py: many answers are told at once",
    ),
    Relied(
        "clearml", "clearml/backend_interface/base.py", "IdObjectBase",
        "_data reload()",
        "gateway/figures/metrics.py: whether the SDK could read the service's task again",
    ),
    Relied(
        "clearml", "clearml/backend_interface/base.py", "InterfaceBase",
        "_send(session,req,ignore_errors,raise_on_errors,log,async_enable) _JSON_EXCEPTION",
        "contract/worker/sdk_patience.py: what is refused is asked again after a pause",
    ),
    Relied(
        "clearml", "clearml/backend_api/session/session.py", "Session",
        "send(req_obj,async_enable,headers) host",
        "contract/worker/sdk_patience.py: the same",
    ),
    Relied(
        "clearml", "clearml/backend_api/session/session.py", "",
        "LoginError MaxRequestSizeError",
        "contract/worker/sdk_patience.py: the same",
    ),
    Relied(
        "starlette", "starlette/responses.py", "Response",
        "__init__(content,status_code,headers,media_type,background) media_type",
        "preprocess/response.py: an answer that also reads like a dict",
    ),
    Relied(
        "starlette", "starlette/responses.py", "StreamingResponse",
        "__init__(content,status_code,headers,media_type,background) __call__(scope,receive,send) "
        "stream_response(send)",
        "control_plane/files/downloads.py: a file that is closed wherever its download ends; "
        "preprocess/generation/answer.py: a stream that ends when its caller leaves",
    ),
    Relied(
        "python-multipart", "python_multipart/multipart.py", "MultipartCallbacks",
        "on_part_begin on_header_field on_header_value on_header_end on_headers_finished "
        "on_part_data on_end",
        "control_plane/files/uploads.py: parts go to files while they come",
    ),
    Relied(
        "jinja2", "jinja2/ext.py", "Extension",
        "parse(parser) tags",
        "preprocess/generation/chat.py: the mark around what an assistant said",
    ),
    Relied(
        "click", "click/core.py", "Group",
        "invoke(ctx)",
        "desk/cli/__init__.py: a Failure is one line and an exit code",
    ),
    Relied(
        "click", "click/core.py", "Group",
        "parse_args(ctx,args)",
        "desk/cli/rollout.py: what is no command is a bundle",
    ),
    Relied(
        "click", "click/core.py", "Command",
        "parse_args(ctx,args)",
        "desk/cli/options.py: an option of three numbers says so where fewer come",
    ),
    Relied(
        "click", "click/types.py", "Choice",
        "convert(value,param,ctx)",
        "desk/cli/options.py: a task by another tool's name",
    ),
    Relied(
        "click", "click/types.py", "IntRange",
        "IntRange",
        "desk/cli/options.py: the same of what is no number",
    ),
    Relied(
        "click", "click/types.py", "FloatRange",
        "FloatRange",
        "desk/cli/options.py: no nan is a number of seconds",
    ),
    Relied(
        "click", "click/types.py", "_NumberRangeBase",
        "convert(value,param,ctx)",
        "desk/cli/options.py: the same; what a FloatRange is converted by",
    ),
    Relied(
        "clearml", "clearml/utilities/config.py", "",
        "config_dict_to_text(config)",
        "controller/control_plane/serving_configuration.py: routes in clearml-serving's form",
    ),
    Relied(
        "tritonclient", "tritonclient/_plugin.py", "InferenceServerClientPlugin",
        "__call__(request)",
        "engine/controller/triton/server.py: the key beside every call",
    ),
    Relied(
        "torch", "torch/nn/modules/module.py", "Module",
        "forward",
        "desk/export/heads.py: the model with its task's head, as it is exported",
    ),
    Relied(
        "torch", "torch/_export/serde/serialize.py", "",
        "serialize deserialize SerializedArtifact",
        "desk/export/program.py and engine/backends/exported_program.py: torch's own JSON of a "
        "program, without the archive around it that has pickles",
    ),
    Relied(
        # Compiled; it is read by its stub.
        "torch", "torch/_C/__init__.pyi", "",
        "_cuda_endAllocateToPool(device,mempool_id)",
        "engine/backends/torch_cuda.py: what torch leaves out where CUDA ends a recording",
    ),
    Relied(
        "torch", "torch/nn/attention/varlen.py", "",
        "varlen_attn(query,key,value,cu_seq_q,cu_seq_k,max_q,max_k)",
        "engine/backends/packed/operators.py: attention without padding, which torch calls a beta",
    ),
    Relied(
        "openvino", "openvino/tools/ovc/telemetry_utils.py", "",
        "tm",
        "engine/backends/openvino_quiet.py: it goes without openvino_telemetry where that is not",
    ),
    Relied(
        "openvino", "openvino/_offline_transformations/__init__.py", "",
        "apply_make_stateful_transformation",
        "desk/export/stateful.py: keys and values become the decoder's state",
    ),
    Relied(
        "transformers", "transformers/models/gpt_neo/modeling_gpt_neo.py", "GPTNeoSelfAttention",
        "_attn(query,key,value,attention_mask) attention_type",
        "desk/export/attention.py: its layers take no attention from outside",
    ),
    Relied(
        "transformers", "transformers/models/gptj/modeling_gptj.py", "GPTJAttention",
        "_attn(query,key,value,attention_mask)",
        "desk/export/attention.py: the same",
    ),
    Relied(
        "clearml", "clearml/task.py", "Task",
        "init(project_name,task_name,task_type,tags,reuse_last_task_id,continue_last_task,"
        "output_uri,auto_connect_arg_parser,auto_connect_frameworks,auto_resource_monitoring,"
        "auto_connect_streams,deferred_init)",
        "gateway/host/task.py: the host's task is made without a look at the code",
    ),
    Relied(
        "clearml", "clearml/utilities/resource_monitor.py", "ResourceMonitor",
        "__init__(task,sample_frequency_per_sec,report_frequency_sec,first_report_sec,"
        "wait_for_first_iteration_to_start_sec,max_wait_for_first_iteration_to_start_sec,"
        "report_mem_used_per_process)",
        "gateway/host/task.py: how often it reads the machine's figures",
    ),
    Relied(
        "clearml", "clearml/backend_api/session/datamodel.py", "",
        "_CustomValidator",
        "contract/worker/sdk_schemas.py: what holds the SDK's requests against their schemas",
    ),
    Relied(
        "clearml", "clearml/binding/artifacts.py", "Artifacts",
        "_hash_block_size",
        "gateway/host/code_copy.py: whether a copy is of the upload that is asked for",
    ),
    Relied(
        "clearml", "clearml/binding/artifacts.py", "Artifact",
        "name url hash type get_local_copy(extract_archive,raise_on_error,force_download)",
        "gateway/host/code_files.py and code_copy.py: an endpoint's code, in a thread",
    ),
    Relied(
        "clearml", "clearml/utilities/pyhocon/config_parser.py", "ConfigParser",
        "parse",
        "contract/worker/parsed_sections.py: sections as they stand",
    ),
    Relied(
        "clearml", "clearml/utilities/pyhocon/config_tree.py", "ConfigSubstitution",
        "__init__(variable,optional,ws,instring,loc)",
        "contract/worker/parsed_sections.py: what a substitution would read",
    ),
    Relied(
        "clearml", "clearml/backend_interface/task/task.py", "Task",
        "_get_configuration_dict(name)",
        "contract/worker/parsed_sections.py: the section that a fault is in",
    ),
    Relied(
        "clearml", "clearml/utilities/pyhocon/config_parser.py", "ConfigFactory",
        "parse_file parse_URL",
        "contract/worker/parsed_sections.py: what an include would read",
    ),
    Relied(
        "clearml", "clearml/utilities/pyhocon/config_parser.py", "ConfigFactory",
        "parse_string(content,basedir,resolve,unresolved_value)",
        "contract/worker/sdk_defaults.py: the SDK's defaults without their comments",
    ),
    Relied(
        "clearml", "clearml/backend_config/config.py", "Config",
        "_read_single_file(file_path,verbose)",
        "contract/worker/sdk_defaults.py: the SDK's defaults without their comments",
    ),
    Relied(
        "clearml", "clearml/utilities/dicts.py", "",
        "hocon_unquote_key",
        "contract/worker/parsed_sections.py: names as they were written",
    ),
    Relied(
        "clearml", "clearml/storage/helper.py", "_StorageHelper",
        "get(url,logger) _driver _base_url _canonize_url(url)",
        "engine/controller/files/storage.py: a broken download goes on",
    ),
    Relied(
        "clearml", "clearml/storage/helper.py", "_HttpDriver",
        "__init__(retries) get_container(container_name,config) session get_headers",
        "engine/controller/files/storage.py: a broken download goes on",
    ),
    Relied(
        "clearml-serving", _HOST, "ModelRequestProcessor",
        "_task _engine_processor_lookup _request_processing_state _update_lock_flag "
        "_canary_route _normalize_endpoint_url(endpoint,version) _sync_daemon_thread "
        "get_endpoints() get_synced_endpoints() "
        "deserialize(task,prefetch_artifacts,skip_sync,update_current_task)",
        "host/building.py, short_way.py, health.py, metrics.py; the controller's clearml_edge.py",
    ),
    Relied(
        "clearml-serving", _HOST, "ModelRequestProcessor",
        "_process_request(processor,url,body)",
        "gateway/rollout/under_way.py: who runs at a candidate, by what was drawn",
    ),
    Relied(
        "clearml-serving", _HOST, "ModelRequestProcessor",
        "_update_serving_plot() _update_monitored_models() _model_monitoring "
        "_model_monitoring_versions _model_monitoring_update_request _update_canary_lookup() "
        "_canary_endpoints _endpoints _model_monitoring_endpoints _last_update_hash "
        "_report_text(text)",
        "gateway/host/faults.py: seven faults fenced off",
    ),
    Relied(
        "clearml-serving", _HOST, "ModelRequestProcessor",
        "_task _sync_monitored_models(force) _update_monitored_models() _model_monitoring_versions "
        "_model_monitoring_endpoints _model_monitoring_update_request _engine_processor_lookup",
        "gateway/host/monitored_versions.py: versions are numbered alike by all workers",
    ),
    Relied(
        "clearml-serving", _HOST, "ModelRequestProcessor",
        "_stats_send_loop() _stats_queue _kafka_stats_url",
        "gateway/host/statistics.py: rows that nobody sends are bounded",
    ),
    Relied(
        "clearml-serving", _HOST, "FastSimpleQueue",
        "put(a_object,block) get(block) _deque",
        "gateway/host/statistics.py: what the queue keeps its rows in is exchanged",
    ),
    Relied(
        "clearml-serving", "clearml_serving/serving/endpoints.py", "ModelEndpoint",
        "model_id",
        "gateway/host/monitored_versions.py: what the serving task has of a version",
    ),
    Relied(
        "clearml-serving", _ENGINE, "BasePreprocessRequest",
        "__init__(model_endpoint,task) _preprocess get_engine_cls(engine) is_preprocess_async "
        "is_process_async is_postprocess_async "
        "preprocess(request,state,collect_custom_statistics_fn) "
        "process(data,state,collect_custom_statistics_fn) "
        "postprocess(data,state,collect_custom_statistics_fn)",
        "gateway/host/preprocess_gate.py: code is run when a trusted key signed it; building.py; "
        "code_files.py: it is there before",
    ),
    Relied(
        "clearml-serving", _APP, "",
        "app processor session_logger instance_id grpc_aio_ignore_errors grpc_aio_verbose_errors "
        "format_exception exit_app AioRpcError ModelRequestProcessor EndpointNotFoundException "
        "EndpointModelLoadException EndpointBackendEngineException ServingInitializationException",
        "gateway/host/errors.py and serving.py: the host's answers, given on its behalf",
    ),
    Relied(
        "clearml-serving", "clearml_serving/__main__.py", "",
        "main",
        "desk/clearml_tools/command.py: its command line without the frameworks",
    ),
    Relied(
        "transformers", "transformers/modeling_utils.py", "PreTrainedModel",
        "from_pretrained(pretrained_model_name_or_path) output_loading_info loading_info",
        "desk/export/heads.py: which weights are missing of what sentence-transformers loads",
    ),
    Relied(
        "transformers", "transformers/models/auto/modeling_auto.py", "",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        "desk/source/padding.py: the classifier whose forward is asked what it reads of the config",
    ),
)  # fmt: skip
# Attributes with an underscore that the standard library documents, or that are our own.
OPEN_ALL_THE_SAME = {"_exit", "_replace"}


def tree_of(distribution: str, file: str) -> ast.Module:
    path = Path(str(metadata.distribution(distribution).locate_file(file)))
    assert path.is_file(), f"{distribution} {metadata.version(distribution)} has no {file}"
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def names_in(distribution: str, file: str, owner: str) -> dict[str, str | None]:
    """Each name that a class or a file has; of a function also what it takes but `self`."""
    scope: ast.AST = tree_of(distribution, file)
    if owner:
        classes = [node for node in ast.walk(scope) if isinstance(node, ast.ClassDef)]
        scope = next((node for node in classes if node.name == owner), ast.Module([], []))
    found: dict[str, str | None] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            found.setdefault(
                node.name, ",".join(name for name in taken if name not in ("self", "cls"))
            )
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and owner:
            found.setdefault(node.attr, None)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id, None)
        elif isinstance(node, ast.ClassDef):
            found.setdefault(node.name, None)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(dict.fromkeys(alias.asname or alias.name for alias in node.names))
    return found


@pytest.mark.parametrize("row", RELIED_ON, ids=lambda row: f"{row.owner or row.file}")
def test_it_has_what_is_relied_on(row: Relied) -> None:
    found = names_in(row.distribution, row.file, row.owner)
    whose = f"{row.distribution} {metadata.version(row.distribution)}, {row.file} {row.owner}"
    for wanted in row.names.split():
        name, bracket, taken = wanted.rstrip(")").partition("(")
        assert name in found, f"{whose} has no {name}; look at {row.by}"
        if bracket:
            assert found[name] == taken, (
                f"{whose}.{name} takes ({found[name]}), not ({taken}); look at {row.by}"
            )


def test_granian_makes_its_worker_as_we_do() -> None:
    """In the order in which gateway/server/http.py hands them over."""
    functions = {
        node.name: node
        for node in ast.walk(tree_of("granian", _GRANIAN))
        if isinstance(node, ast.FunctionDef)
    }
    calls = [
        ", ".join(map(ast.unparse, node.args))
        for node in ast.walk(functions["_spawn_asgi_lifespan_worker"])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ASGIWorker"
    ]
    assert calls == [_ITS_WORKER]


def requirements() -> dict[str, list[Requirement]]:
    """Every list of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return {name: [Requirement(row) for row in rows] for name, rows in lists.items()}


@pytest.mark.parametrize("distribution", sorted({row.distribution for row in RELIED_ON}))
def test_it_has_an_upper_bound(distribution: str) -> None:
    found = [
        row
        for rows in requirements().values()
        for row in rows
        if canonicalize_name(row.name) == canonicalize_name(distribution)
    ]
    assert found, f"{distribution} is in no list of pyproject.toml"
    for row in found:
        assert any(one.operator in ("<", "==") for one in row.specifier), f"{row}: no upper bound"


def test_the_decision_lists_those_that_have_rows() -> None:
    """Of the names in pyproject.toml these and no other."""
    text = (ROOT / "docs" / "decisions" / "project.md").read_text("utf-8")
    (bounds,) = re.findall(r"Each distribution has an upper bound.*?\.\s", text, re.DOTALL)
    names = {canonicalize_name(row.name) for rows in requirements().values() for row in rows}
    said = {canonicalize_name(word) for word in re.findall(r"[\w-]+", bounds)} & names
    assert said == {canonicalize_name(row.distribution) for row in RELIED_ON}


def test_every_lock_is_within_its_bounds() -> None:
    rows = requirements()
    desk = [*rows["dependencies"], *rows["convert"]]
    wanted = {"desk": desk, "dev": [*desk, *rows["dev"]]}
    wanted |= {name: rows[name] for name in rows if name.startswith("image-")}
    for lock, bounds in wanted.items():
        pins = pins_of(lock) | (pins_of("desk") if lock == "dev" else {})
        for bound in bounds:
            pin = pins[canonicalize_name(bound.name)]
            assert bound.specifier.contains(pin), f"{lock}.lock has {bound.name} {pin}, not {bound}"


def pins_of(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{lock}.lock").read_text("utf-8")
    rows = (row.split("==") for row in text.splitlines() if "==" in row)
    return {canonicalize_name(name): version for name, version in rows}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("preprocess", "transformer_serving", "docker"):
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text("utf-8"))


def imported(tree: ast.Module) -> dict[str, str]:
    """Each name that a file imports, and from which package."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: node.module for alias in node.names}
    return {name: module.split(".")[0] for name, module in found.items()}


def first_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_of_others(package: str) -> bool:
    ours = {"preprocess", "transformer_serving", "docker", ""}
    return package not in ours and package not in sys.stdlib_module_names


def test_every_class_of_others_that_is_extended_or_replaced_has_a_row() -> None:
    known = {row.owner for row in RELIED_ON}
    packages = {row.file.split("/")[0] for row in RELIED_ON}
    for path, tree in sources():
        names = imported(tree)
        touched = [
            base for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases
        ]
        touched += [
            target
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute)
        ]
        for node in touched:
            package = names.get(first_name(node) or "", "")
            if is_of_others(package):
                said = ast.unparse(node)
                assert package in packages, f"{path}: {said} has no row"
                assert said.split(".")[-1] in known, f"{path}: {said} has no row"


def test_every_private_name_of_others_has_a_row() -> None:
    known = {re.sub(r"\(.*", "", name) for row in RELIED_ON for name in row.names.split()}
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                assert own or node.attr in known | OPEN_ALL_THE_SAME, (
                    f"{path}:{node.lineno}: {ast.unparse(node)} is somebody's inner part; "
                    "give it a row of RELIED_ON"
                )
