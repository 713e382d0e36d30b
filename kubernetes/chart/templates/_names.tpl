{{/* Names and labels: each takes (list $ COMPONENT). */}}
{{- define "serving.name" -}}
{{- printf "%s-%s" (index . 0).Release.Name (index . 1) -}}
{{- end }}

{{- define "serving.chosenBy" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "serving.labels" -}}
{{ include "serving.chosenBy" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end }}

{{- define "serving.metadata" -}}
name: {{ include "serving.name" . }}
namespace: {{ (index . 0).Release.Namespace | quote }}
labels:
  {{- include "serving.labels" . | nindent 2 }}
{{- end }}

{{/* What the front door lets through, with what settings add, as JSON. */}}
{{- define "serving.publicPaths" -}}
{{- $paths := .Values.publicPaths }}
{{- $settings := .Values.inference.settings }}
{{- if index $settings "TRANSFORMER_SERVING_GENERATE_ENDPOINT" }}
{{- $paths = append $paths "/generate" | uniq }}
{{- end }}
{{- /* Below it is everything else, so it is let through alone. */}}
{{- if index $settings "TRANSFORMER_SERVING_ROOT_ENDPOINT" }}
{{- $paths = append $paths "/" }}
{{- end }}
{{- toJson $paths }}
{{- end }}

{{/* (list $ COMPONENT VALUES): a Deployment's line of replicas. Where an autoscaler owns them it is the
number that runs: without the line Helm takes an older release's away, and Kubernetes makes it one pod. Any
other number Helm 4 would refuse, as the autoscaler's; but of none it is the minimum, as a
HorizontalPodAutoscaler takes 0 for being turned off, and leaves it. */}}
{{- define "serving.replicas" -}}
{{- $ := index . 0 -}}
{{- $name := include "serving.name" . -}}
{{- if not (index . 2).autoscaling.enabled -}}
replicas: {{ (index . 2).replicas }}
{{- else -}}
{{- $least := (index . 2).autoscaling.minReplicas -}}
{{- with lookup "apps/v1" "Deployment" $.Release.Namespace $name -}}
replicas: {{ .spec.replicas | default $least }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* (list $ NAME): an image's whole reference. */}}
{{- define "serving.image" -}}
{{- $images := (index . 0).Values.images -}}
{{- $image := index $images (index . 1) -}}
{{- /* A port ends a registry's name, and a name has one. */ -}}
{{- if and $images.registry (not (regexMatch "^[^/]+:[0-9]+/" $image)) }}{{ trimSuffix "/" $images.registry }}/{{ end }}{{ $image }}
{{- end }}

{{/* The Secret with ClearML's keys. */}}
{{- define "serving.credentials" -}}
{{- .Values.existingSecret | default (include "serving.name" (list . "credentials")) -}}
{{- end }}

{{- define "serving.pollMinutes" -}}
{{- ternary .Values.local.pollMinutes .Values.pollMinutes .Values.local.enabled -}}
{{- end }}

{{/* What ClearML's own tools read, as lines of a ConfigMap. */}}
{{- define "serving.clearml" -}}
{{- if .Values.local.enabled }}
{{- $address := printf "http://%s:8008" (include "serving.name" (list . "control-plane")) }}
CLEARML_WEB_HOST: {{ $address | quote }}
CLEARML_API_HOST: {{ $address | quote }}
CLEARML_FILES_HOST: {{ $address | quote }}
# The init container writes it there.
CLEARML_SERVING_TASK_ID_FILE: /run/local/serving-id
{{- else }}
{{- range $name, $value := .Values.clearml }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
TRANSFORMER_SERVING_REQUIRED: CLEARML_API_HOST CLEARML_API_ACCESS_KEY CLEARML_API_SECRET_KEY CLEARML_SERVING_TASK_ID
# Of what is missing the entrypoint then names this chart's values.
TRANSFORMER_SERVING_OUR_CHART: "1"
{{- with .Values.trustedKeys }}
TRANSFORMER_SERVING_TRUSTED_KEYS: {{ . | quote }}
{{- end }}
{{- if .Values.access.keysSecret }}
TRANSFORMER_SERVING_KEYS_FILE: /run/keys/keys.json
{{- end }}
{{- if .Values.googleSecret }}
GOOGLE_APPLICATION_CREDENTIALS: /run/google/key.json
{{- end }}
{{- end }}

{{/* A map of settings as lines: JSON, so that large numbers keep their digits. */}}
{{- define "serving.settings" -}}
{{- range $name, $value := . }}
{{ $name }}: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}
