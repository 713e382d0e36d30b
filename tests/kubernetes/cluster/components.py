"""A cluster of one node on this machine: etcd, the API server, its controllers, a kubelet, a proxy.

The pods run on the Docker Engine, which kubelets of that time speak to themselves, so that the
images built there are the cluster's. Names are answered by names.py, metrics.k8s.io by metrics.py.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tests.compose.conftest import wait_for
from tests.compose.machine import run
from tests.free_ports import free_ports
from tests.gateway.certificates import Authority
from tests.kubernetes.cluster.api import Api
from tests.kubernetes.cluster.names import DOMAIN
from tests.kubernetes.cluster.processes import Processes

NODE = "node"
_KUBELET = f"system:node:{NODE}"
_GROUPS = {
    "admin": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    _KUBELET: "system:nodes",
}
_SERVICES = "10.96.0.0/16"
_FRONT = "front-proxy-client"
_POD = "label=io.kubernetes.pod.name"
_PAUSE = "transformer-serving/pause:test"


class Cluster:
    """`address`: the machine's own on the network of its pods, where the node is reached, too."""

    def __init__(self, folder: Path, binaries: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self._binaries = binaries
        ports = ("etcd", "etcd-peers", "api", "controllers", "scheduler", "kubelet", "healthz",
                 "proxy", "proxy-metrics")  # fmt: skip
        self._ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self._processes = Processes(folder)
        self._tokens = {user: secrets.token_hex(16) for user in _GROUPS}
        self.authority = Authority(folder)
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        self.api = Api(self.url, self._tokens["admin"], self.authority.client())
        self.kubeconfig = self._kubeconfig("admin")

    @property
    def kubelet_url(self) -> str:
        return f"https://{self.address}:{self._ports['kubelet']}"

    def kubectl(self, *arguments: str) -> str:
        return run(*self.kubectl_command(*arguments))

    def kubectl_command(self, *arguments: str) -> list[str]:
        return [str(self._binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]

    def version(self) -> str:
        return str(self.api.get("/version")["gitVersion"])

    def start(self) -> None:
        make_pause_image(self.folder)
        self._start_api()
        self._start_controllers()
        self.start_kubelet()
        self._start_proxy()
        wait_for(self._node_ready, "the node is ready")
        wait_for(lambda: self._found("serviceaccounts/default"), "the namespace's account")

    def stop(self) -> None:
        self._processes.stop()
        remove_containers()
        unmount(self.folder)

    def kill_kubelet(self) -> None:
        self._processes.kill("kubelet")

    def heartbeat(self) -> str:
        """When the kubelet said last that it is there."""
        lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
        return str(self.api.get(lease)["spec"]["renewTime"])

    def node_status(self) -> str:
        """Of the condition Ready: True, False, or Unknown where its kubelet is away."""
        return str(self._ready_condition().get("status", ""))

    def ready_for(self) -> float:
        """How many seconds the node is ready for; a kubelet that starts says first that it is
        not."""
        if self.node_status() != "True":
            return 0.0
        since = datetime.fromisoformat(self._ready_condition()["lastTransitionTime"])
        return (datetime.now(UTC) - since).total_seconds()

    def _ready_condition(self) -> dict[str, Any]:
        node = self.api.get(f"/api/v1/nodes/{NODE}") or {"status": {}}
        rows = node["status"].get("conditions", [])
        return next((row for row in rows if row["type"] == "Ready"), {})

    def _node_ready(self) -> bool:
        self._processes.check()
        return self.node_status() == "True"

    def _found(self, what: str) -> bool:
        return self.api.get(f"/api/v1/namespaces/default/{what}") is not None

    def _start_api(self) -> None:
        etcd = f"http://127.0.0.1:{self._ports['etcd']}"
        peers = f"http://127.0.0.1:{self._ports['etcd-peers']}"
        self._start(
            "etcd", data_dir=self.folder / "etcd", listen_client_urls=etcd,
            advertise_client_urls=etcd, listen_peer_urls=peers, unsafe_no_fsync="true",
        )  # fmt: skip
        server, accounts = self.authority.sign("api"), self.authority.sign("accounts")
        to_kubelet, front = self.authority.sign("to-kubelet"), self.authority.sign(_FRONT)
        tokens = self.folder / "tokens.csv"
        rows = (
            f"{self._tokens[user]},{user},{user}{group and f',{group}'}\n"
            for user, group in _GROUPS.items()
        )
        tokens.write_text("".join(rows))
        self._start(
            "kube-apiserver", etcd_servers=etcd, bind_address="127.0.0.1",
            secure_port=self._ports["api"], advertise_address=self.address,
            tls_cert_file=server.cert, tls_private_key_file=server.key, token_auth_file=tokens,
            authorization_mode="Node,RBAC", enable_admission_plugins="NodeRestriction",
            service_cluster_ip_range=_SERVICES, allow_privileged="true",
            service_account_issuer="https://cluster.test", service_account_key_file=accounts.cert,
            service_account_signing_key_file=accounts.key,
            kubelet_client_certificate=to_kubelet.cert, kubelet_client_key=to_kubelet.key,
            kubelet_preferred_address_types="InternalIP",
            requestheader_client_ca_file=self.authority.cert, requestheader_allowed_names=_FRONT,
            requestheader_username_headers="X-Remote-User",
            requestheader_group_headers="X-Remote-Group",
            requestheader_extra_headers_prefix="X-Remote-Extra-",
            proxy_client_cert_file=front.cert, proxy_client_key_file=front.key,
        )  # fmt: skip
        wait_for(self._api_ready, "the API server is ready")

    def _api_ready(self) -> bool:
        self._processes.check()
        return self.api.ready()

    def _start_controllers(self) -> None:
        user = "system:kube-controller-manager"
        self._start(
            "kube-controller-manager", kubeconfig=self._kubeconfig(user),
            use_service_account_credentials="true", root_ca_file=self.authority.cert,
            service_account_private_key_file=self.folder / "accounts-key.pem",
            leader_elect="false", port=0, bind_address="127.0.0.1",
            secure_port=self._ports["controllers"], cert_dir=self.folder / "certificates",
            authentication_skip_lookup="true",
            # Shorter than by default, so that a test sees sooner what comes of it.
            horizontal_pod_autoscaler_sync_period="5s",
        )  # fmt: skip
        self._start(
            "kube-scheduler", kubeconfig=self._kubeconfig("system:kube-scheduler"),
            leader_elect="false", port=0, bind_address="127.0.0.1",
            secure_port=self._ports["scheduler"], cert_dir=self.folder / "certificates",
            authentication_skip_lookup="true",
        )  # fmt: skip

    def start_kubelet(self) -> None:
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": self._ports["kubelet"],
            "healthzPort": self._ports["healthz"],
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.authority.cert)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": run("docker", "info", "--format", "{{.CgroupDriver}}").strip(),
            "failSwapOn": False,
            "clusterDomain": DOMAIN,
            "clusterDNS": [self.address],
            # A test machine's disk may be fuller than a node's.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "nodeStatusUpdateFrequency": "2s",
        }
        path = self.folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(settings))
        self._start(
            "kubelet", config=path, kubeconfig=self._kubeconfig(_KUBELET), hostname_override=NODE,
            node_ip=self.address, root_dir=self.folder / "kubelet",
            cert_dir=self.folder / "certificates", container_runtime="docker",
            pod_infra_container_image=_PAUSE, network_plugin="",
        )  # fmt: skip

    def _start_proxy(self) -> None:
        self._start(
            "kube-proxy", kubeconfig=self._kubeconfig("system:kube-proxy"), proxy_mode="iptables",
            hostname_override=NODE,
            healthz_bind_address=f"127.0.0.1:{self._ports['proxy']}",
            metrics_bind_address=f"127.0.0.1:{self._ports['proxy-metrics']}",
            # All pods are on one bridge: an answer has to come back through the machine.
            masquerade_all="true", conntrack_max_per_core=0,
            conntrack_tcp_timeout_established=0, conntrack_tcp_timeout_close_wait=0,
        )  # fmt: skip

    def start_beside(self, name: str, *command: str) -> None:
        """A program of another's that ends with the cluster."""
        self._processes.start(name, *command)

    def _start(self, name: str, **options: object) -> None:
        flags = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
        self._processes.start(name, str(self._binaries / name), *flags)

    def _kubeconfig(self, user: str) -> Path:
        """JSON is YAML."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority.cert)}
        values = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        }
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(values))
        path.chmod(0o600)
        return path


def make_pause_image(folder: Path) -> None:
    """What holds a pod's network: a program that waits, in an image with nothing else."""
    context = folder / "pause"
    context.mkdir()
    source = context / "pause.c"
    source.write_text(
        "#include <signal.h>\n#include <unistd.h>\n"
        "static void leave(int s) { (void)s; _exit(0); }\n"
        "int main(void) { signal(SIGTERM, leave); signal(SIGINT, leave); for (;;) pause(); }\n"
    )
    run("cc", "-static", "-O2", "-o", str(context / "pause"), str(source))
    with subprocess.Popen(
        ["tar", "-C", str(context), "-c", "pause"], stdout=subprocess.PIPE
    ) as archive:
        subprocess.run(
            ["docker", "import", "--change", 'ENTRYPOINT ["/pause"]', "-", _PAUSE],
            stdin=archive.stdout, check=True, capture_output=True,
        )  # fmt: skip
    shutil.rmtree(context)


def unmount(folder: Path) -> None:
    """What pods had mounted below it; after a run that was killed, too."""
    # The latest first: volumes lie below the kubelet's folder, which is a mount itself.
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        point = line.split()[1]
        if Path(point).is_relative_to(folder):
            subprocess.run(["umount", point], check=True)


def failed_containers() -> str:
    """The last lines of each container of a pod that has ended with a failure."""
    found = [_POD, "status=exited", "exited=1", "exited=2", "exited=127", "exited=137"]
    filters = [part for one in found for part in ("--filter", one)]
    rows = run("docker", "ps", "--all", "--format", "{{.ID}} {{.Names}}", *filters).splitlines()
    told = []
    for container, name in (row.split() for row in rows):
        log = subprocess.run(
            ["docker", "logs", "--tail=15", container], text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        told.append(f"{name}:\n{log.stdout}")
    return "\n".join(told)


def remove_containers() -> None:
    """Of pods: a Docker Engine that is not ours would keep them."""
    found = run("docker", "ps", "--all", "--quiet", "--filter", _POD).split()
    if found:
        run("docker", "rm", "--force", *found)
