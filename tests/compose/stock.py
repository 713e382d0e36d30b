"""clearml-serving's own docker/docker-compose-triton-gpu.yml: what the override must fit on."""

from __future__ import annotations

from typing import Any

# From the folder beside the repository, as the docs have it.
STOCK_PATH = "clearml-serving/docker/docker-compose-triton-gpu.yml"
_STORAGE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_DEFAULT_REGION",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_KEY",
)
_NETWORK = "clearml-serving-backend"


def stock_file(*, runnable: bool = False) -> dict[str, Any]:
    """Its services, names and keys that matter to the override, written anew.

    `runnable`: no GPU is asked for. What is named by an image that nobody can pull, nobody starts.
    """
    services = {
        "zookeeper": _service("zookeeper", "bitnami/zookeeper:3.7.0"),
        "kafka": _service("kafka", "bitnami/kafka:3.1.1", depends_on=["zookeeper"]),
        "clearml-serving-statistics": _service(
            "statistics", "allegroai/clearml-serving-statistics:latest", depends_on=["kafka"]
        ),
        "clearml-serving-inference": _service(
            "inference",
            "allegroai/clearml-serving-inference:latest",
            security_opt=["seccomp:unconfined"],
            ports=["8080:8080"],
            environment=_environment()
            | _passed(
                CLEARML_SERVING_PORT="8080",
                CLEARML_SERVING_POLL_FREQ="1.0",
                CLEARML_DEFAULT_BASE_SERVE_URL="http://127.0.0.1:8080/serve",
                CLEARML_DEFAULT_KAFKA_SERVE_URL="clearml-serving-kafka:9092",
                CLEARML_DEFAULT_TRITON_GRPC_ADDR="clearml-serving-triton:8001",
                CLEARML_USE_GUNICORN="",
                CLEARML_SERVING_NUM_PROCESS="",
            ),
            depends_on=["kafka", "clearml-serving-triton"],
        ),
        "clearml-serving-triton": _service(
            "triton",
            "allegroai/clearml-serving-triton:latest",
            security_opt=["seccomp:unconfined"],
            environment=_environment()
            | _passed(CLEARML_TRITON_POLL_FREQ="1.0", CLEARML_TRITON_METRIC_FREQ="1.0"),
            depends_on=["kafka"],
            deploy={"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}},
        ),
    }
    services |= _monitoring()
    if runnable:
        del services["clearml-serving-triton"]["deploy"]
    return {"services": services, "networks": {_NETWORK: {"driver": "bridge"}}}


def _environment() -> dict[str, str]:
    """What that file gives both services, by its own defaults."""
    return {
        **_passed(
            CLEARML_WEB_HOST="https://app.clear.ml",
            CLEARML_API_HOST="https://api.clear.ml",
            CLEARML_FILES_HOST="https://files.clear.ml",
        ),
        "CLEARML_API_ACCESS_KEY": "${CLEARML_API_ACCESS_KEY}",
        "CLEARML_API_SECRET_KEY": "${CLEARML_API_SECRET_KEY}",
        **_passed(CLEARML_SERVING_TASK_ID="", CLEARML_EXTRA_PYTHON_PACKAGES=""),
        **_passed(**dict.fromkeys(_STORAGE, "")),
    }


def _passed(**defaults: str) -> dict[str, str]:
    return {name: f"${{{name}:-{value}}}" for name, value in defaults.items()}


def _monitoring() -> dict[str, Any]:
    return {
        "prometheus": _service(
            "prometheus",
            "prom/prometheus:v2.34.0",
            volumes=["./prometheus.yml:/prometheus.yml"],
            command=["--config.file=/prometheus.yml", "--web.enable-lifecycle"],
            depends_on=["clearml-serving-statistics"],
        ),
        "alertmanager": _service(
            "alertmanager", "prom/alertmanager:v0.23.0", depends_on=["prometheus", "grafana"]
        ),
        "grafana": _service(
            "grafana",
            "grafana/grafana:8.4.4-ubuntu",
            volumes=["./datasource.yml:/etc/grafana/provisioning/datasources/datasource.yaml"],
            ports=["3000:3000"],
            depends_on=["prometheus"],
        ),
    }


def _service(name: str, image: str, **keys: Any) -> dict[str, Any]:
    return {
        "image": image,
        "container_name": f"clearml-serving-{name}",
        "restart": "unless-stopped",
        "networks": [_NETWORK],
        **keys,
    }
