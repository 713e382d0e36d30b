{{/* Quantities that an API server would refuse only when a part of the release is changed already. */}}

{{/* (list NAME QUANTITY): one such as 1.5Gi, 500m or 2 as a number in text. */}}
{{- define "serving.quantity" -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 1e-3 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $power := 1.0 -}}
{{- range $unit := list "Ki" "Mi" "Gi" "Ti" "Pi" "Ei" -}}
{{- $power = mulf $power 1024.0 -}}
{{- $_ := set $units $unit $power -}}
{{- end -}}
{{- $text := toString (index . 1) -}}
{{- if not (regexMatch "^[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$" $text) }}
  {{- fail (printf "%s is '%s', which is no quantity: give one such as 4Gi or 500m" (index . 0) $text) }}
{{- end }}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- mulf (float64 (trimSuffix $unit $text)) (get $units $unit) -}}
{{- end }}

{{- define "serving.checkResources" -}}
{{- range $part := list "inference" "triton" "local" }}
  {{- $resources := (index $.Values $part).resources }}
  {{- range $name := list "cpu" "memory" }}
    {{- $asked := get ($resources.requests | default dict) $name | default "" }}
    {{- $limit := get ($resources.limits | default dict) $name | default "" }}
    {{- if and $asked $limit }}
      {{- $asks := printf "%s.resources.requests.%s" $part $name }}
      {{- $limits := printf "%s.resources.limits.%s" $part $name }}
      {{- if gt (float64 (include "serving.quantity" (list $asks $asked))) (float64 (include "serving.quantity" (list $limits $limit))) }}
        {{- fail (printf "%s is %v and %s %v: the first must not be more" $asks $asked $limits $limit) }}
      {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What a StatefulSet claims stays as it was made with. */}}
{{- define "serving.checkClaim" -}}
{{- $local := .Values.local }}
{{- $name := include "serving.name" (list . "control-plane") }}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name }}
  {{- $made := (first .spec.volumeClaimTemplates).spec }}
  {{- $size := $made.resources.requests.storage }}
  {{- $class := $made.storageClassName | default "" }}
  {{- $way := printf "then 'kubectl delete statefulset %s --cascade=orphan', which leaves pod and data, and upgrade again" $name }}
  {{- if ne (include "serving.quantity" (list "local.size" $local.size)) (include "serving.quantity" (list "the claim's size" $size)) }}
    {{- fail (printf "local.size is %s, and Kubernetes keeps the %s that the StatefulSet was made with: enlarge the claim data-%s-0 itself, %s" $local.size $size $name $way) }}
  {{- end }}
  {{- if ne $local.storageClassName $class }}
    {{- fail (printf "local.storageClassName is '%s', and Kubernetes keeps the '%s' that the StatefulSet was made with, as the data does: back up, bring the data into a claim data-%s-0 of the other class, %s" $local.storageClassName $class $name $way) }}
  {{- end }}
{{- end }}
{{- end }}
