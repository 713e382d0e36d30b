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

{{/* (list $ PART): what its container asks for and is held to, as JSON. */}}
{{- define "serving.resources" -}}
{{- $part := index (index . 0).Values (index . 1) -}}
{{- $gpus := dict -}}
{{- if $part.gpus -}}
{{- $gpus = dict "limits" (dict "nvidia.com/gpu" $part.gpus) -}}
{{- end -}}
{{- merge (deepCopy $part.resources) $gpus | toJson -}}
{{- end }}

{{/* (list $ PART KIND): by the resources' names, each of its requests or limits as JSON: `path` of the value,
`given` there, and as a number `amount`. */}}
{{- define "serving.amounts" -}}
{{- $amounts := dict -}}
{{- range $name, $given := get (include "serving.resources" . | fromJson) (index . 2) | default dict -}}
{{- if not (kindIs "invalid" $given) -}}
{{- $path := printf "%s.resources.%s.%s" (index $ 1) (index $ 2) $name -}}
{{- if not (regexMatch "^(cpu|memory|ephemeral-storage|hugepages-.+)$|/" $name) }}
  {{- fail (printf "%s is no resource: give cpu, memory, ephemeral-storage or hugepages-SIZE, or a device's name, which has its vendor's domain before a /" $path) }}
{{- end }}
{{- $amount := include "serving.quantity" (list $path $given) | float64 -}}
{{- if and (contains "/" $name) (ne $amount (floor $amount)) }}
  {{- fail (printf "%s is %v, and a device is given whole: give 1 or more, or a slice by the name that its device plugin has for it" $path $given) }}
{{- end }}
{{- $_ := set $amounts $name (dict "path" $path "given" $given "amount" $amount) -}}
{{- end -}}
{{- end -}}
{{- toJson $amounts -}}
{{- end }}

{{- define "serving.checkResources" -}}
{{- range $part := list "inference" "triton" "local" }}
  {{- $limits := include "serving.amounts" (list $ $part "limits") | fromJson }}
  {{- range $name, $asks := include "serving.amounts" (list $ $part "requests") | fromJson }}
    {{- $limit := get $limits $name }}
    {{- /* Devices and huge pages are nobody's to share. */}}
    {{- $own := regexMatch "^hugepages-|/" $name }}
    {{- if and $own (not $limit) }}
      {{- fail (printf "%s is %v and has no limit, which such a resource needs: give the same below %s.resources.limits, which is enough alone" $asks.path $asks.given $part) }}
    {{- end }}
    {{- if and $own (ne $asks.amount $limit.amount) }}
      {{- fail (printf "%s is %v and %s %v: of such a resource they must be the same, so leave the first out" $asks.path $asks.given $limit.path $limit.given) }}
    {{- end }}
    {{- if and $limit (gt $asks.amount $limit.amount) }}
      {{- fail (printf "%s is %v and %s %v: the first must not be more" $asks.path $asks.given $limit.path $limit.given) }}
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
