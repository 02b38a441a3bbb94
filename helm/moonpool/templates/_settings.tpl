{{- /* The members of etcd that masters keep hard state in; none: a file. */ -}}
{{- define "moonpool.etcdEndpoints" -}}
{{- if .Values.etcd.endpoints -}}
{{- .Values.etcd.endpoints | toJson -}}
{{- else if .Values.etcd.trial.enabled -}}
{{- $name := printf "%s-etcd" (include "moonpool.fullname" .) -}}
{{- $members := list -}}
{{- range $number := until (int .Values.etcd.trial.replicas) -}}
{{- $members = append $members (printf "%s-%d.%s-headless:2379" $name $number $name) -}}
{{- end -}}
{{- $members | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- define "moonpool.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "moonpool.fullname" .)) .Values.access.tokens.existingSecret -}}
{{- end -}}

{{- /* (list $ "master"): the Secret with a component's certificate. */ -}}
{{- define "moonpool.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $given := get $root.Values.access.tls (printf "%sSecret" $component) -}}
{{- default (printf "%s-%s-tls" (include "moonpool.fullname" $root) $component) $given -}}
{{- end -}}

{{- define "moonpool.masterAddress" -}}
{{- printf "%s-master.%s.svc:%v" (include "moonpool.fullname" .) .Release.Namespace .Values.master.port -}}
{{- end -}}

{{- /* Settings of access to the pool, as every process kind has them: tokens and certificates. */ -}}
{{- define "moonpool.accessSettings" -}}
{{- $root := index . 0 -}}
{{- $kind := index . 1 -}}
{{- $settings := dict -}}
{{- $access := $root.Values.access -}}
{{- if $access.insecure -}}
{{- if ne $kind "client" -}}{{- $_ := set $settings "insecure" true -}}{{- end -}}
{{- else -}}
{{- if ne $kind "client" -}}{{- $_ := set $settings "tokens_file" "/etc/moonpool/tokens/tokens.json" -}}{{- end -}}
{{- if ne $kind "master" -}}
{{- $_ := set $settings "token_file" (printf "/etc/moonpool/tokens/%s-token" $kind) -}}
{{- end -}}
{{- if $access.tls.enabled -}}
{{- $_ := set $settings "tls_cert" "/etc/moonpool/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key" "/etc/moonpool/tls/tls.key" -}}
{{- $_ := set $settings "tls_ca" "/etc/moonpool/tls/ca.crt" -}}
{{- /* Nodes are reached by addresses that no certificate can name beforehand: the CA has to be the pool's own. */ -}}
{{- if ne $kind "master" -}}{{- $_ := set $settings "tls_verify_host" false -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $settings | toJson -}}
{{- end -}}

{{- define "moonpool.masterSettings" -}}
{{- $values := .Values.master -}}
{{- $settings := dict
  "host" "0.0.0.0"
  "port" (int $values.port)
  "http_host" "0.0.0.0"
  "http_port" (int $values.httpPort)
-}}
{{- if .Values.tracing.endpoint -}}{{- $_ := set $settings "tracing" true -}}{{- end -}}
{{- with $values.events -}}
{{- if .port -}}
{{- $_ := set $settings "events_host" "0.0.0.0" -}}
{{- $_ := set $settings "events_port" (int .port) -}}
{{- if .keysSecret -}}
{{- $_ := set $settings "events_key" "/etc/moonpool/events/events.key" -}}
{{- $_ := set $settings "events_clients" "/etc/moonpool/events/events.clients" -}}
{{- else if not $.Values.access.insecure -}}
{{- fail "master.events.port is set: KV events name the blocks of all tenants; name a Secret with keys in master.events.keysSecret (docs/security.md)" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $endpoints := include "moonpool.etcdEndpoints" . | fromJsonArray -}}
{{- if $endpoints -}}
{{- $_ := set $settings "store" (printf "etcd://%s" (join ";" $endpoints)) -}}
{{- $_ := set $settings "cluster" (default (include "moonpool.fullname" .) .Values.cluster) -}}
{{- if .Values.etcd.endpoints -}}
{{- with .Values.etcd.tlsSecret -}}
{{- $_ := set $settings "etcd_ca" "/etc/moonpool/etcd/ca.crt" -}}
{{- $_ := set $settings "etcd_cert" "/etc/moonpool/etcd/tls.crt" -}}
{{- $_ := set $settings "etcd_key" "/etc/moonpool/etcd/tls.key" -}}
{{- end -}}
{{- with .Values.etcd.user -}}
{{- $_ := set $settings "etcd_user" . -}}
{{- $_ := set $settings "etcd_password_file" "/etc/moonpool/etcd-password/password" -}}
{{- end -}}
{{- end -}}
{{- else if $values.persistence.enabled -}}
{{- $_ := set $settings "store" "file:/var/lib/moonpool/state" -}}
{{- end -}}
{{- mergeOverwrite $settings (include "moonpool.accessSettings" (list . "master") | fromJson) $values.settings | toJson -}}
{{- end -}}

{{- define "moonpool.nodeSettings" -}}
{{- $values := .Values.node -}}
{{- $settings := dict
  "master" (include "moonpool.masterAddress" .)
  "host" "0.0.0.0"
  "port" (int $values.port)
  "data_port" (int $values.dataPort)
  "metrics_host" "0.0.0.0"
  "metrics_port" (int $values.metricsPort)
  "size" $values.size
  "segment_dir" "/segments"
  "run_dir" "/run/moonpool"
-}}
{{- if .Values.tracing.endpoint -}}{{- $_ := set $settings "tracing" true -}}{{- end -}}
{{- if eq $values.memory.kind "hugePages" -}}{{- $_ := set $settings "page_size" "64MiB" -}}{{- end -}}
{{- if $values.rdma.enabled -}}
{{- $_ := set $settings "engine_protocol" $values.rdma.protocol -}}
{{- $_ := set $settings "engine_devices" $values.rdma.devices -}}
{{- end -}}
{{- mergeOverwrite $settings (include "moonpool.accessSettings" (list . "node") | fromJson) $values.settings | toJson -}}
{{- end -}}
