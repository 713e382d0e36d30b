"""A part of the API that is served here: the API server passes it on and shows its certificate."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tests.compose.conftest import wait_for
from tests.kubernetes.cluster.components import Cluster

Answer = dict[str, Any]
_NAMESPACE = "kube-system"
_APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


class AggregatedApi:
    """One group's version; `answer` is asked for what lies below it, by its path there."""

    def __init__(
        self, cluster: Cluster, group: str, version: str, kinds: Mapping[str, str],
        answer: Callable[[list[str], SplitResult], Answer | None],
    ) -> None:  # fmt: skip
        self._cluster, self._group, self._version = cluster, group, version
        # By resource. kubectl takes a group without any for one that is broken.
        self._kinds, self._below = kinds, answer
        self._server = ThreadingHTTPServer((cluster.address, 0), self._handler())
        pair = cluster.authority.sign(group, host=cluster.address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        context.load_verify_locations(cluster.authority.cert)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._name_it()
        # Before the proxy has heard of the Service its address may be somebody else's, outside.
        wait_for(self._reached, "the Service leads here")
        spec = {
            "service": self._meta, "group": self._group, "version": self._version,
            "insecureSkipTLSVerify": True, "groupPriorityMinimum": 100, "versionPriority": 100,
        }  # fmt: skip
        name = f"{self._version}.{self._group}"
        self._cluster.api.create(_APISERVICES, {"metadata": {"name": name}, "spec": spec})
        path = f"{_APISERVICES}/{name}"
        wait_for(lambda: _available(self._cluster.api.get(path)), "the API server knows of it")

    def stop(self) -> None:
        # A group that nobody serves is an error to everybody who asks for all groups.
        self._cluster.api.delete(f"{_APISERVICES}/{self._version}.{self._group}")
        self._server.shutdown()
        self._server.server_close()

    @property
    def _meta(self) -> dict[str, str]:
        return {"name": self._group.split(".")[0], "namespace": _NAMESPACE}

    def _name_it(self) -> None:
        """A Service without pods, whose address is the server's."""
        api, core = self._cluster.api, f"/api/v1/namespaces/{_NAMESPACE}"
        port = {"name": "https", "port": 443, "protocol": "TCP"}
        api.create(f"{core}/services", {"metadata": self._meta, "spec": {"ports": [port]}})
        subset = {
            "addresses": [{"ip": self._cluster.address}],
            "ports": [{**port, "port": self._server.server_address[1]}],
        }
        api.create(f"{core}/endpoints", {"metadata": self._meta, "subsets": [subset]})

    def _reached(self) -> bool:
        """Through the Service, over TLS: the certificate is of our authority."""
        path = f"/api/v1/namespaces/{_NAMESPACE}/services/{self._meta['name']}"
        host = self._cluster.api.get(path)["spec"]["clusterIP"]
        context = self._cluster.authority.client(self._cluster.authority.sign("caller"))
        context.check_hostname = False
        url = f"https://{host}/apis/{self._group}/{self._version}"
        try:
            with urllib.request.urlopen(url, context=context, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def answer(self, asked: str) -> Answer | None:
        url = urlsplit(asked)
        base = f"/apis/{self._group}/{self._version}"
        if url.path == base:
            return {
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": f"{self._group}/{self._version}",
                "resources": [_resource(name, kind) for name, kind in self._kinds.items()],
            }  # fmt: skip
        below = self._below(url.path.removeprefix(f"{base}/").split("/"), url)
        return below and {"apiVersion": f"{self._group}/{self._version}", "metadata": {}, **below}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                found = answer(self.path)
                body = json.dumps(found or {}).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """No line for each request."""

        return Handler


def _resource(name: str, kind: str) -> dict[str, Any]:
    verbs = ["get", "list"]
    return {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": verbs}


def _available(row: dict[str, Any] | None) -> bool:
    conditions = ((row or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)
