{{/* What the pods of every component have in common. */}}
{{- define "serving.pod" -}}
{{- $ := index . 0 -}}
serviceAccountName: {{ $.Release.Name | quote }}
automountServiceAccountToken: false
# Variables of Services, such as RELEASE_TRITON_PORT, could be taken for settings.
enableServiceLinks: false
{{- with $.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "serving.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* (list $ COMPONENT): its pods, of which there may be several, are kept apart. */}}
{{- define "serving.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "serving.chosenBy" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* A part's values: the nodes that its pods may have, and before whom. */}}
{{- define "serving.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}

{{/* What is given, and not the Secret: keys that the chart made are looked up, which a rendering without
a cluster cannot. */}}
{{- define "serving.ofCredentials" -}}
checksum/credentials: {{ toJson .Values.credentials | sha256sum }}
{{- end }}

{{/* (list $ COMPONENT VALUES): new pods where what they read at their start has changed. */}}
{{- define "serving.annotations" -}}
{{- $ := index . 0 -}}
checksum/settings: {{ include (print "serving.data." (index . 1)) $ | sha256sum }}
{{ include "serving.ofCredentials" $ }}
{{- with (index . 2).podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (list $ COMPONENT VALUES): the environment. */}}
{{- define "serving.environment" -}}
{{- $ := index . 0 -}}
envFrom:
  - configMapRef:
      name: {{ include "serving.name" . }}
  - secretRef:
      name: {{ include "serving.credentials" $ | quote }}
{{- with (index . 2).extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The serving service's id, which the embedded control plane gave at its first start. */}}
{{- define "serving.findService" -}}
{{- $ := index . 0 -}}
{{- if $.Values.local.enabled }}
initContainers:
  - name: find-service
    image: {{ include "serving.image" (list $ "controlPlane") | quote }}
    imagePullPolicy: {{ $.Values.images.pullPolicy }}
    args: [find-service]
    env:
      - name: TRANSFORMER_SERVING_REQUIRED
        value: CLEARML_API_HOST CLEARML_API_ACCESS_KEY CLEARML_API_SECRET_KEY
    envFrom:
      - configMapRef:
          name: {{ include "serving.name" . }}
      - secretRef:
          name: {{ include "serving.credentials" $ | quote }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 256Mi}
    securityContext:
      {{- include "serving.confined" $ | nindent 6 }}
    volumeMounts:
      - {name: local, mountPath: /run/local}
{{- end }}
{{- end }}

{{- define "serving.sharedMounts" -}}
- {name: state, mountPath: /var/lib/transformer-serving}
- {name: tmp, mountPath: /tmp}
{{- if .Values.local.enabled }}
- {name: local, mountPath: /run/local, readOnly: true}
{{- end }}
{{- if .Values.access.keysSecret }}
# Folders: a mount of one file would show the old one where that is replaced.
- {name: keys, mountPath: /run/keys, readOnly: true}
{{- end }}
{{- if .Values.googleSecret }}
- {name: google, mountPath: /run/google, readOnly: true}
{{- end }}
{{- end }}

{{- define "serving.sharedVolumes" -}}
{{- if .Values.local.enabled }}
- name: local
  emptyDir: {sizeLimit: 1Mi}
{{- end }}
{{- with .Values.access.keysSecret }}
- name: keys
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.googleSecret }}
- name: google
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
