// Reads a JSON list of objects and prints a JSON list with each one's fault, null where it has none.
import {HTTPRoute} from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute";
import {ScaledObject} from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import {PodMonitor} from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";
import {PrometheusRule} from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import {readFileSync} from "node:fs";

const kinds = {HTTPRoute, ScaledObject, PodMonitor, PrometheusRule};

function fault(object) {
  try {
    new kinds[object.kind](object).validate();
    return null;
  } catch (error) {
    return `${object.kind} ${error.message}`;
  }
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(fault)));
