"""Every variable of the compose files: the parts' own settings, and what only compose has.

Tested by tests/test_compose_files.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.contract.settings import preprocess as preprocess_settings
from transformer_serving.contract.settings.polls import SERVING_POLL, TRITON_POLL
from transformer_serving.contract.settings.preprocess import STOCK_GRPC
from transformer_serving.contract.settings.stop import STOP_SECONDS, TRITON_EXIT_SECONDS as _EXIT
from transformer_serving.contract.signatures import TRUSTED_KEYS_HELP, TRUSTED_KEYS_VARIABLE
from transformer_serving.contract.worker import tracing
from transformer_serving.gateway import settings as gateway_settings
from transformer_serving.gateway.access import OPEN, TLS_CLIENT_CA


@dataclass(frozen=True)
class Variable:
    """One line of docker/example.env; `default` is what compose takes where it is empty."""

    name: str
    help: str
    default: str = ""


@dataclass(frozen=True)
class Section:
    """Variables under one heading."""

    title: str
    variables: tuple[Variable, ...]


# The machine itself, as the compose files name it to containers.
HOST_NAME = "host.docker.internal"
# What differs in containers from the parts' own defaults.
IN_CONTAINERS = {"TRANSFORMER_SERVING_METRICS_HOST": "0.0.0.0"}
_DRAIN, _WORKERS = gateway_settings.DRAIN_SECONDS.name, gateway_settings.WORKERS

CLEARML = Section(
    "The ClearML server. All empty: the control plane of --profile local.",
    (
        Variable("CLEARML_WEB_HOST", "Its web address, such as https://app.clear.ml."),
        Variable("CLEARML_API_HOST", "Its API, such as https://api.clear.ml."),
        Variable("CLEARML_FILES_HOST", "Its file server, such as https://files.clear.ml."),
        Variable("CLEARML_API_ACCESS_KEY", "Access key; or a file, with compose/secrets.yaml."),
        Variable("CLEARML_API_SECRET_KEY", "Secret key; or a file, with compose/secrets.yaml."),
        Variable("CLEARML_SERVING_TASK_ID", "Id that 'clearml-serving create' printed."),
    ),
)
MACHINE = Section(
    "The machine itself, as its containers know it.",
    (
        Variable(
            "TRANSFORMER_SERVING_HOST_ADDRESS",
            "Address of host.docker.internal; host-gateway: the one that Docker takes. A Docker "
            'without its own bridge ("bridge": "none") and some releases of Podman know none, and '
            "start no container then: give an address of the machine.",
            "host-gateway",
        ),
    ),
)
STORAGE = Section(
    "Where models lie, when it is not ClearML's file server.",
    (
        Variable("AWS_ACCESS_KEY_ID", "S3: access key."),
        Variable("AWS_SECRET_ACCESS_KEY", "S3: secret key."),
        Variable("AWS_DEFAULT_REGION", "S3: region."),
        Variable(
            "GOOGLE_APPLICATION_CREDENTIALS",
            "Google Storage: path of the key file inside the containers; mount it there.",
        ),
        Variable("AZURE_STORAGE_ACCOUNT", "Azure: storage account."),
        Variable("AZURE_STORAGE_KEY", "Azure: its key."),
    ),
)
SIGNING = Section(
    "Whose bundles are served; empty: everybody's who has the ClearML keys (docs/security.md).",
    (Variable(TRUSTED_KEYS_VARIABLE, TRUSTED_KEYS_HELP),),
)
FRONT_DOOR = Section(
    "What is published on this machine.",
    (
        Variable(
            "TRANSFORMER_SERVING_BIND",
            "Address of the front door, IPv6 in brackets. On one that others reach it does not "
            "start without keys (the next part) or TRANSFORMER_SERVING_OPEN=1.",
            "127.0.0.1",
        ),
        Variable("TRANSFORMER_SERVING_PORT", "Port of the front door.", "8080"),
        Variable(
            "TRANSFORMER_SERVING_PUBLISHED_GRPC_PORT",
            "Port of its gRPC, with compose/grpc.yaml.",
            "8001",
        ),
        Variable(
            "TRANSFORMER_SERVING_CONTROL_PLANE_PORT",
            "Port of the local profile's control plane, always on 127.0.0.1.",
            "8008",
        ),
    ),
)
ACCESS = Section(
    "Keys and TLS at the front door: docs/compose.md. Paths from compose/ begin with ./, ../ or /.",
    (
        Variable(
            "TRANSFORMER_SERVING_KEYS_FOLDER",
            "Folder with keys.json, made by `transformer-serving keys add`; requests then need a "
            "key. User 10001 must be able to read the file.",
        ),
        Variable(
            "TRANSFORMER_SERVING_TLS_FOLDER",
            "Folder with tls.crt, the certificate and its chain, and tls.key, both as PEM; then "
            "only TLS 1.2 and 1.3 are spoken. User 10001 must be able to read them.",
        ),
        Variable(
            TLS_CLIENT_CA.name,
            f"{TLS_CLIENT_CA.help} The folder above is /run/tls in the containers: such as "
            "/run/tls/ca.crt. It then also holds health.crt and health.key, a certificate of those "
            "authorities for the containers' own health check.",
        ),
        Variable(OPEN.name, OPEN.help),
    ),
)
INFERENCE = Section(
    "The inference containers.",
    (
        Variable(_WORKERS.name, _WORKERS.help, _WORKERS.default),
        Variable(SERVING_POLL.name, SERVING_POLL.help, "0.1"),
        Variable("CLEARML_INFERENCE_TASK_ID", "ClearML task to go on with; empty: a new one."),
        Variable(
            STOCK_GRPC,
            "Triton's gRPC as host:port, for endpoints whose preprocess leaves the call to "
            "clearml-serving, and for the others where TRANSFORMER_SERVING_TRITON_HTTP and _GRPC "
            "are empty. From another form of gRPC's those two cannot be derived: set them.",
            "triton:8001",
        ),
        Variable(
            "CLEARML_DEFAULT_KAFKA_SERVE_URL",
            "Kafka for clearml-serving's statistics; it also needs kafka-python and lz4 below.",
        ),
        Variable(
            "CLEARML_EXTRA_PYTHON_PACKAGES",
            "Packages that pip installs into a volume at start; better: an image of your own.",
        ),
        Variable(
            STOP_SECONDS.name,
            f"{STOP_SECONDS.help} The drain with what requests have below, and Triton's exit, must "
            "fit in; a container whose do not ends at its start.",
            STOP_SECONDS.default,
        ),
        Variable(
            "INFERENCE_CONTAINERS",
            "How many there are, with compose/scale.yaml; 32 at most. `--scale` goes before it.",
            "1",
        ),
        Variable("INFERENCE_CPUS", "CPUs of each container; 0: no limit.", "0"),
        Variable(
            "INFERENCE_MEMORY",
            "Memory of each container, of which a worker has 100 to 230 MB and under load its "
            "bodies' bytes (TRANSFORMER_SERVING_BODY_MEMORY_BYTES). Workers that it does not hold "
            "are killed and started again.",
            "2g",
        ),
        Variable(
            "INFERENCE_PIDS",
            "Threads of each container, of which a worker has 25 to 60; too few for the workers "
            "above are refused at the start.",
            "4096",
        ),
    ),
)
TRITON = Section(
    "The Triton containers.",
    (
        Variable(TRITON_POLL.name, TRITON_POLL.help, TRITON_POLL.default),
        Variable(
            "TRANSFORMER_SERVING_GRACE_SECONDS",
            "Seconds that the previous bundle serves on after an update, more than both polls "
            "together: a container that is told less ends at its start. Empty: both polls and 30.",
        ),
        Variable(_EXIT.name, _EXIT.help, _EXIT.default),
        Variable(
            "TRANSFORMER_SERVING_KEEP_TASKS_SECONDS",
            "Seconds without a sign after which the ClearML task of an inference container is "
            "deleted; 0: never. Empty: 3600 on the local profile's control plane where "
            "CLEARML_INFERENCE_TASK_ID is empty too, else never.",
        ),
        Variable(
            "TRANSFORMER_SERVING_MODEL_CACHE",
            "Folder in the containers that all Tritons share, where each model is fetched once for "
            "all; mount it there, for user 10001. Empty: each fetches its own.",
        ),
        Variable(
            "TRANSFORMER_SERVING_STORE_BYTES",
            "Bytes that a Triton's models and their downloads may take: a model that would not fit "
            "is not fetched. Empty: what the disk has.",
        ),
        Variable(
            "TRANSFORMER_SERVING_ENDPOINTS",
            "Pattern of the endpoints that this Triton takes, as in a shell.",
            "*",
        ),
        Variable(
            "TRANSFORMER_SERVING_VERSION_COMPATIBLE",
            "1: load version-compatible TensorRT plans of older releases too. These bring code: no "
            f"plan is loaded then without {TRUSTED_KEYS_VARIABLE}.",
        ),
        Variable(
            "TRANSFORMER_SERVING_COMPUTE_CAPABILITY",
            "The GPU's, such as 8.6, where nvidia-smi is not in the container.",
        ),
        Variable(
            "TRITON_CONTAINERS",
            "How many there are, not on clearml-serving's own file. With compose/gpu.yaml all of "
            "them have the same GPUs. `--scale` goes before it.",
            "1",
        ),
        Variable(
            "TRITON_GPUS",
            "GPUs of each container, the first ones of the machine, with compose/gpu.yaml; all, or "
            "a number.",
            "1",
        ),
        Variable("TRITON_CPUS", "CPUs of each container; 0: no limit.", "0"),
        Variable("TRITON_MEMORY", "Memory of each container.", "16g"),
        Variable(
            "TRITON_PIDS",
            "Threads of each container. An engine has one for each CPU that it may use, of each "
            "endpoint.",
            "4096",
        ),
        Variable(
            "TRITON_MEMLOCK",
            "Bytes that may be locked, with compose/gpu.yaml; -1: no limit. Rootless Docker cannot "
            "raise it.",
            "-1",
        ),
        Variable("TRITON_SHARED_MEMORY", "Shared memory for tensors of Python backends.", "1g"),
    ),
)
TRACES = Section(
    "OpenTelemetry's own, of inference; the last three are Triton's too (docs/observability.md).",
    (
        Variable("OTEL_SERVICE_NAME", "Name of the service in traces; empty: transformer-serving."),
        Variable("OTEL_EXPORTER_OTLP_TIMEOUT", "Seconds for sending a batch of spans; empty: 10."),
        Variable(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "Headers for the receiver as name=value, several with commas, such as its key.",
        ),
        Variable(
            "TRANSFORMER_SERVING_RESOURCE_ATTRIBUTES",
            "OTEL_RESOURCE_ATTRIBUTES of the containers: what all spans say of where they come "
            "from, as name=value, several with commas.",
        ),
        Variable("OTEL_SDK_DISABLED", "true: no traces, whatever else is set."),
    ),
)
MONITORING = Section(
    "Prometheus, Alertmanager and Grafana, with compose/monitoring.yaml; all three on 127.0.0.1.",
    (
        Variable("PROMETHEUS_PORT", "Port of Prometheus.", "9090"),
        Variable("ALERTMANAGER_PORT", "Port of Alertmanager.", "9093"),
        Variable("GRAFANA_PORT", "Port of Grafana.", "3000"),
        Variable("PROMETHEUS_MEMORY", "Memory of Prometheus.", "2g"),
        Variable(
            "MONITORING_FOLDER",
            "Folder with prometheus.yaml, rules.yaml, alertmanager.yaml and grafana/: a copy of "
            "compose/monitoring, with whom to tell. It begins with ./, ../ or /, from compose/.",
            "./monitoring",
        ),
        Variable(
            "METRICS_KEY_PATH",
            "File with a key of `transformer-serving keys add NAME --metrics`, where there are "
            "keys. Prometheus's user must be able to read it. Relative to compose/.",
            "../docker/no-metrics-key",
        ),
    ),
)
IMAGES = Section(
    "The images of the kit.",
    (
        Variable(
            "TRANSFORMER_SERVING_IMAGE_TAG",
            "Tag by which they are built and started: with another one those of before stay, to go "
            "back to (docs/compose.md). Empty: the kit's version.",
        ),
    ),
)
FILES = Section(
    "Files of yours; paths are relative to compose/.",
    (
        Variable("PIP_CONF", "pip.conf for building the images: a private index."),
        Variable(
            "CA_BUNDLE", "Certificates for building; a build sees them as /run/ca-bundle.crt."
        ),
        Variable(
            "CLEARML_API_ACCESS_KEY_PATH",
            "The access key's file, with compose/secrets.yaml.",
            "../secrets/clearml_api_access_key",
        ),
        Variable(
            "CLEARML_API_SECRET_KEY_PATH",
            "The secret key's file, with compose/secrets.yaml.",
            "../secrets/clearml_api_secret_key",
        ),
    ),
)


def settings() -> Section:
    """The gateway's and preprocess's own settings, for the inference containers."""
    rows = [
        Variable(row.name, row.help, IN_CONTAINERS.get(row.name, row.default))
        for row in (*preprocess_settings.SETTINGS, *gateway_settings.SETTINGS, *tracing.SETTINGS)
    ]
    return Section("Settings of preprocess and gateway.", tuple(map(_drained, rows)))


def _drained(row: Variable) -> Variable:
    """The drain's default depends on whether a balancer is there to see it."""
    if row.name != _DRAIN:
        return row
    return Variable(row.name, f"{row.help} Empty: {row.default}, and 5 behind the balancer.")


def sections() -> tuple[Section, ...]:
    return (
        CLEARML,
        MACHINE,
        STORAGE,
        SIGNING,
        FRONT_DOOR,
        ACCESS,
        INFERENCE,
        settings(),
        TRITON,
        TRACES,
        MONITORING,
        IMAGES,
        FILES,
    )


def variables() -> tuple[Variable, ...]:
    return tuple(row for section in sections() for row in section.variables)
