{{- define "moonpool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 36 | trimSuffix "-" -}}
{{- end -}}

{{- /* 36 characters: names of services and pods add to it, and a label has 63. */ -}}
{{- define "moonpool.fullname" -}}
{{- $name := include "moonpool.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* (list $ "master"): what selects the pods of one component. */ -}}
{{- define "moonpool.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "moonpool.name" $root | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 | quote }}
{{- end -}}

{{- define "moonpool.labels" -}}
{{- $root := index . 0 -}}
{{ include "moonpool.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "moonpool.image" -}}
{{- $root := index . 0 -}}
{{- printf "%s:%s" (index . 1) (default $root.Chart.AppVersion $root.Values.image.tag) | quote -}}
{{- end -}}

{{- /* "64Gi" in MiB. */ -}}
{{- define "moonpool.mebibytes" -}}
{{- $unit := get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[MGT]i$" .) -}}
{{- mul (regexFind "^[0-9]+" . | int64) $unit -}}
{{- end -}}
