{{- /* What every container may do: nothing but compute, on a root file system that it can't change. */ -}}
{{- define "moonpool.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "moonpool.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user }}
runAsGroup: {{ .Values.user }}
fsGroup: {{ .Values.user }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* (list $ "master"): the head of a pod template, up to its spec. */ -}}
{{- define "moonpool.podMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "moonpool.labels" . | nindent 2 }}
  {{- with $root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ index . 2 | sha256sum }}
  {{- with $root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* (list $ "master"): the head of a pod's spec. Service links off: a Service called moonpool would put variables into
every pod that look like settings. */ -}}
{{- define "moonpool.podSpec" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
serviceAccountName: {{ include "moonpool.fullname" $root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* (list $ "master"): mounts of the settings file, tokens and certificates. */ -}}
{{- define "moonpool.mounts" -}}
{{- $root := index . 0 -}}
- name: settings
  mountPath: /etc/moonpool/settings
  readOnly: true
{{- if not $root.Values.access.insecure }}
- name: tokens
  mountPath: /etc/moonpool/tokens
  readOnly: true
{{- if $root.Values.access.tls.enabled }}
- name: tls
  mountPath: /etc/moonpool/tls
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- /* (list $ "master" "settings key" (list "token key" ...)): the volumes of these mounts. */ -}}
{{- define "moonpool.volumes" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
- name: settings
  configMap:
    name: {{ include "moonpool.fullname" $root }}-{{ $component }}
{{- if not $root.Values.access.insecure }}
- name: tokens
  secret:
    secretName: {{ include "moonpool.tokensSecret" $root | quote }}
    defaultMode: 0440
    items:
      {{- range index . 2 }}
      - { key: {{ . }}, path: {{ . }} }
      {{- end }}
{{- if $root.Values.access.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "moonpool.tlsSecret" (list $root $component) | quote }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{- /* (list $ "live"): asks the master's REST interface. Health needs no token. */ -}}
{{- define "moonpool.health" -}}
{{- $access := (index . 0).Values.access -}}
httpGet:
  path: /api/v1/health/{{ index . 1 }}
  port: http
  {{- if and $access.tls.enabled (not $access.insecure) }}
  scheme: HTTPS
  {{- end }}
{{- end -}}

{{- /* Where spans go: OpenTelemetry's own variables. */ -}}
{{- define "moonpool.tracing" -}}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}
