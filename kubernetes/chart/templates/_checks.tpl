{{/* What values.schema.json cannot see: values that do not go together. Each is one sentence. */}}
{{- define "serving.checks" -}}
{{- $v := .Values -}}
{{- /* A StatefulSet's pods have a label of its name and ten characters more. */}}
{{- $longest := ternary 38 40 $v.local.enabled }}
{{- if gt (len .Release.Name) $longest }}
  {{- fail (printf "the release's name may have %d characters and has %d: names of Services, and labels of pods, end at 63" $longest (len .Release.Name)) }}
{{- end }}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" .Release.Name) }}
  {{- fail (printf "the release's name is '%s', and names of Services begin with a letter and hold no dot: give another, such as 'r-%s'" .Release.Name (.Release.Name | replace "." "-")) }}
{{- end }}
{{- include "serving.checkClearml" . }}
{{- include "serving.checkAccess" . }}
{{- include "serving.checkAlerts" . }}
{{- include "serving.checkResources" . }}
{{- include "serving.checkExtraEnv" . }}
{{- if $v.local.enabled }}
  {{- include "serving.checkClaim" . }}
{{- end }}
{{- range $part := list "inference" "triton" }}
  {{- $auto := (index $v $part).autoscaling }}
  {{- if and $auto.enabled (gt (int $auto.minReplicas) (int $auto.maxReplicas)) }}
    {{- fail (printf "%s.autoscaling.minReplicas is %d and maxReplicas %d: the first must not be more" $part (int $auto.minReplicas) (int $auto.maxReplicas)) }}
  {{- end }}
{{- end }}
{{- if and $v.triton.autoscaling.enabled (not $v.triton.autoscaling.prometheus) }}
  {{- fail "triton.autoscaling.enabled needs triton.autoscaling.prometheus, the address at which KEDA asks for the waiting tokens" }}
{{- end }}
{{- if and $v.triton.autoscaling.enabled $v.networkPolicy.tritonCallers (eq (int $v.triton.autoscaling.minReplicas) 0) }}
  {{- fail "triton.autoscaling.minReplicas is 0, and networkPolicy.tritonCallers lets another release ask, whose requests start no Triton: set triton.autoscaling.minReplicas to what that release needs, 1 or more" }}
{{- end }}
{{- include "serving.checkMeasures" . }}
{{- if and $v.keepTasksMinutes (lt (float64 $v.keepTasksMinutes) 5.0) }}
  {{- fail (printf "keepTasksMinutes is %v: a pod that lives gives a sign every half minute, and may be late; give 5 or more, or 0 for never" $v.keepTasksMinutes) }}
{{- end }}
{{- include "serving.checkGpus" . }}
{{- include "serving.checkSharedClaim" . }}
{{- if eq (include "serving.grpcPort" .) "8080" }}
  {{- fail "inference.settings.TRANSFORMER_SERVING_GRPC_PORT is 8080, which HTTP has: take another, such as 8001" }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.host) }}
  {{- fail "ingress.enabled needs ingress.host, the name that callers use" }}
{{- end }}
{{- if and $v.route.enabled (not $v.route.parentRefs) }}
  {{- fail "route.enabled needs route.parentRefs, the gateways that the route belongs to" }}
{{- end }}
{{- $paths := include "serving.publicPaths" . | fromJsonArray | len }}
{{- if and $v.route.enabled (gt $paths 128) }}
  {{- fail (printf "publicPaths, with those of TRANSFORMER_SERVING_GENERATE_ENDPOINT and _ROOT_ENDPOINT, are %d, and a route takes 128: give fewer, or an ingress in its place" $paths) }}
{{- end }}
{{- end }}

{{/* A variable of the container goes before the ConfigMap, and nothing else here would know of it. */}}
{{- define "serving.checkExtraEnv" -}}
{{- range $part, $settings := .Files.Get "settings.yaml" | fromYaml }}
  {{- range (index $.Values $part).extraEnv }}
    {{- if has .name $settings }}
      {{- fail (printf "%s.extraEnv gives %s, of which the pods' grace, Service and policies would not know: give it in %s.settings" $part .name $part) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* vLLM's, by any vendor's resource, or a slice of one: such a name has its vendor's domain before a /. */}}
{{- define "serving.checkGpus" -}}
{{- $triton := .Values.triton -}}
{{- $gpus := int $triton.gpus -}}
{{- range $name, $number := $triton.resources.limits | default dict -}}
{{- if contains "/" $name -}}
{{- $gpus = add $gpus (int $number) -}}
{{- end -}}
{{- end -}}
{{- $own := index ($triton.resources.limits | default dict) "nvidia.com/gpu" }}
{{- if and $triton.gpus (not (kindIs "invalid" $own)) (ne (int $triton.gpus) (int $own)) }}
  {{- fail (printf "triton.gpus is %v and triton.resources.limits.nvidia.com/gpu %v: leave one out" $triton.gpus $own) }}
{{- end }}
{{- if and $triton.vllm (not $gpus) }}
  {{- fail "triton.vllm needs triton.gpus, or a GPU's resource in triton.resources.limits, such as nvidia.com/mig-1g.10gb: vLLM computes on a GPU" }}
{{- end }}
{{- end }}

{{/* A pod that comes before the old one goes waits for a volume of one node for good, and the old one for it. */}}
{{- define "serving.checkSharedClaim" -}}
{{- $triton := .Values.triton -}}
{{- $name := $triton.store.sharedClaim -}}
{{- $alone := and (eq $triton.strategy "Recreate") (le (int $triton.replicas) 1) (not $triton.autoscaling.enabled) -}}
{{- if and $name (not $alone) }}
  {{- with lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name }}
    {{- if not (has "ReadWriteMany" .spec.accessModes) }}
      {{- fail (printf "triton.store.sharedClaim is '%s', a claim of %s, which a pod on another node waits for as long as one here has it: give one of ReadWriteMany, or one Triton with triton.strategy=Recreate" $name (join ", " .spec.accessModes)) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What would leave an autoscaler without a number, or with one that never moves it. */}}
{{- define "serving.checkMeasures" -}}
{{- $v := .Values -}}
{{- if and $v.triton.autoscaling.enabled $v.monitoring.podMonitors }}
  {{- $number := regexFind "^[0-9]+" $v.monitoring.interval }}
  {{- $seconds := mulf (float64 $number) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0) (trimPrefix $number $v.monitoring.interval)) }}
  {{- if gt $seconds 20.0 }}
    {{- fail (printf "monitoring.interval is %s, and triton.autoscaling looks at rates of a minute, which are 0 where it has fewer than two figures: set 20s or less, so that one may fail" $v.monitoring.interval) }}
  {{- end }}
{{- end }}
{{- if and $v.inference.autoscaling.enabled (not (include "serving.inferenceCpu" . | fromJson).cpus) }}
  {{- fail "inference.autoscaling.enabled needs inference.resources.requests.cpu, of which it takes cpuPercent: give 1, as a pod is one worker" }}
{{- end }}
{{- end }}

{{/* What a pod of inference asks for, as JSON: `name` of the value, `given` there, in `cpus`. Kubernetes takes
the limit where nothing is requested. */}}
{{- define "serving.inferenceCpu" -}}
{{- $resources := .Values.inference.resources -}}
{{- $name := "requests" -}}
{{- if kindIs "invalid" (($resources.requests | default dict).cpu) -}}
{{- $name = "limits" -}}
{{- end -}}
{{- $given := (get $resources $name | default dict).cpu | default "0" -}}
{{- $name = printf "inference.resources.%s.cpu" $name -}}
{{- dict "name" $name "given" $given "cpus" (include "serving.quantity" (list $name $given) | float64) | toJson -}}
{{- end }}

{{- define "serving.checkClearml" -}}
{{- $v := .Values -}}
{{- if and $v.existingSecret $v.credentials }}
  {{- fail "existingSecret and credentials are both set: put all keys into the Secret, or leave its name empty" }}
{{- end }}
{{- if $v.local.enabled }}
  {{- if $v.clearml }}
    {{- fail "local.enabled brings a control plane of its own: leave clearml empty, or set local.enabled=false" }}
  {{- end }}
{{- else }}
  {{- range $name := list "CLEARML_WEB_HOST" "CLEARML_API_HOST" "CLEARML_FILES_HOST" }}
    {{- if not (index $v.clearml $name) }}
      {{- fail (printf "clearml.%s is empty: give your ClearML server's, or set local.enabled=true for a cluster without one" $name) }}
    {{- end }}
  {{- end }}
  {{- if not $v.existingSecret }}
    {{- if not $v.clearml.CLEARML_SERVING_TASK_ID }}
      {{- fail "clearml.CLEARML_SERVING_TASK_ID is empty: give the id that 'clearml-serving create' printed" }}
    {{- end }}
    {{- range $name := list "CLEARML_API_ACCESS_KEY" "CLEARML_API_SECRET_KEY" }}
      {{- if not (index $v.credentials $name) }}
        {{- fail (printf "credentials.%s is empty: give it, or name a Secret that has it in existingSecret" $name) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "serving.checkAccess" -}}
{{- $v := .Values -}}
{{- if and (not $v.access.open) (not $v.access.keysSecret) }}
  {{- fail "there are no keys: name a Secret with keys.json in access.keysSecret, or set access.open=true to let everybody ask who reaches the Service" }}
{{- end }}
{{- if and $v.access.open $v.access.keysSecret }}
  {{- fail "access.open and access.keysSecret are both set: with keys it is not open; leave one out" }}
{{- end }}
{{- if and $v.access.callersSecret (not $v.access.tlsSecret) }}
  {{- fail "access.callersSecret needs access.tlsSecret: certificates are shown over TLS only" }}
{{- end }}
{{- if and $v.access.tlsSecret (or $v.ingress.enabled $v.route.enabled) }}
  {{- fail "access.tlsSecret does not go with an ingress or a route: TLS ends there, with the certificate that stands there" }}
{{- end }}
{{- if and $v.monitoring.serverName (not $v.access.tlsSecret) }}
  {{- fail "monitoring.serverName needs access.tlsSecret: without it inference speaks HTTP to Prometheus" }}
{{- end }}
{{- if and $v.monitoring.caSecret (not $v.monitoring.serverName) }}
  {{- fail "monitoring.caSecret needs monitoring.serverName: without a name Prometheus looks at no certificate" }}
{{- end }}
{{- if and $v.monitoring.rules (not $v.monitoring.podMonitors) }}
  {{- fail "monitoring.rules needs monitoring.podMonitors: the alerts go by the names that these give what is read" }}
{{- end }}
{{- if and $v.networkPolicy.enabled $v.networkPolicy.callers $v.monitoring.podMonitors (not $v.networkPolicy.prometheus) }}
  {{- fail "monitoring.podMonitors with networkPolicy.callers needs networkPolicy.prometheus, the peers that may read figures: callers alone shut them out" }}
{{- end }}
{{- if and $v.monitoring.podMonitors $v.access.keysSecret (not $v.access.metricsKeySecret) }}
  {{- fail "monitoring.podMonitors with keys needs access.metricsKeySecret: a Secret whose entry 'key' is one of 'transformer-serving keys add NAME --metrics'" }}
{{- end }}
{{- end }}

{{/* What would make alerts fire for good. */}}
{{- define "serving.checkAlerts" -}}
{{- $v := .Values -}}
{{- if $v.monitoring.rules }}
  {{- if and $v.triton.autoscaling.enabled (eq (int $v.triton.autoscaling.minReplicas) 0) }}
    {{- fail "triton.autoscaling.minReplicas is 0, and GoldenRequestFails and NoFigures of monitoring.rules fire where no Triton is: set triton.autoscaling.minReplicas to 1, or monitoring.rules=false and take the groups that you want into monitoring.ruleGroups" }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The port of gRPC as text; "0" where there is none. */}}
{{- define "serving.grpcPort" -}}
{{- $given := index .Values.inference.settings "TRANSFORMER_SERVING_GRPC_PORT" | default 0 -}}
{{- /* Templates write a whole number as 8e3, too; the gateway reads it likewise. */ -}}
{{- $port := float64 $given -}}
{{- if gt $port 65535.0 }}
  {{- fail (printf "inference.settings.TRANSFORMER_SERVING_GRPC_PORT is '%v': give a port of at most 65535, such as 8001, or 0 for none" $given) }}
{{- end }}
{{- int64 $port -}}
{{- end }}

{{/* (list $ NAME DEFAULT): a setting of inference that an alert measures against, as a number. */}}
{{- define "serving.limit" -}}
{{- $given := index (index . 0).Values.inference.settings (index . 1) | default (index . 2) -}}
{{- if hasSuffix "_POLL_FREQ" (index . 1) -}}
{{- /* Both parts poll as often, which no setting of theirs changes. */ -}}
{{- $given = include "serving.pollMinutes" (index . 0) -}}
{{- end -}}
{{- $text := ternary $given (toJson $given) (kindIs "string" $given) -}}
{{- if not (and (regexMatch "^[0-9]+(\\.[0-9]+)?$" $text) (gt (float64 $text) 0.0)) }}
  {{- fail (printf "inference.settings.%s is '%s', and the alerts of monitoring.rules need a number above 0" (index . 1) $text) }}
{{- end }}
{{- $text -}}
{{- end }}
