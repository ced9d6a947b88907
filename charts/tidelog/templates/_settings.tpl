{{/* Settings by Kafka's name, as a properties file for each kind of service. */}}

{{/*
Default settings: three replicas, two of which must store acknowledged records, or as many replicas as there are
brokers. The number is explicit, so that internal topics that are needed before all brokers run wait for the brokers.
*/}}
{{- define "tidelog.defaultSettings" -}}
{{- $replicas := min 3 (int .Values.brokers.replicas) -}}
{{- $minIsr := ternary 2 1 (ge (int $replicas) 3) -}}
default.replication.factor: {{ $replicas }}
min.insync.replicas: {{ $minIsr }}
offsets.topic.replication.factor: {{ $replicas }}
share.coordinator.state.topic.min.isr: {{ $minIsr }}
share.coordinator.state.topic.replication.factor: {{ $replicas }}
transaction.state.log.replication.factor: {{ $replicas }}
transaction.state.log.min.isr: {{ $minIsr }}
{{- end -}}

{{/* All settings of (dict "root" $ "own" .Values.brokers.settings) by name: defaults, those of all services, its own. */}}
{{- define "tidelog.settings" -}}
{{- toYaml (mergeOverwrite (include "tidelog.defaultSettings" .root | fromYaml) (deepCopy .root.Values.settings) (deepCopy .own)) -}}
{{- end -}}

{{/* The same settings as a properties file. Helm reads numbers as floats and would print large ones with an exponent. */}}
{{- define "tidelog.properties" -}}
{{- $settings := include "tidelog.settings" . | fromYaml -}}
{{- range $name := keys $settings | sortAlpha }}
{{- $value := get $settings $name }}
{{- if not (kindIs "invalid" $value) }}
{{ $name }}={{ include "tidelog.propertyValue" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.propertyValue" -}}
{{- if kindIs "string" . -}}
{{- . | replace "\\" "\\\\" | replace "\n" "\\n" | replace "\r" "\\r" | replace "\t" "\\t" -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/*
Entries of `env:` that all services have: (dict "root" $ "component" "broker" "values" .Values.brokers). The limit of a stop is slightly
shorter than the node's, so that the process itself reports unfinished work.
*/}}
{{- define "tidelog.serviceEnv" -}}
{{ include "tidelog.podEnv" .root }}
- name: TIDELOG_LOG_FORMAT
  value: json
- name: TIDELOG_METRICS_LISTENER
  value: "0.0.0.0:9404"
- name: TIDELOG_PROBES_LISTENER
  value: "0.0.0.0:9405"
- name: TIDELOG_SHUTDOWN_TIMEOUT_MS
  value: {{ mul 1000 (max 1 (sub (int .values.terminationGracePeriodSeconds) 5)) | quote }}
{{- with include "tidelog.etcd.serviceEnv" . }}
{{ . }}
{{- end }}
{{- with include "tidelog.tls.env" .root }}
{{ . }}
{{- end }}
{{- with include "tidelog.tracing.env" .root }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Entries of `env:`, `volumes:` and `volumeMounts:` for traces, if they are enabled. */}}
{{- define "tidelog.tracing.env" -}}
{{- if .Values.tracing.enabled -}}
- name: TIDELOG_TRACING_OTLP_ENDPOINT
  value: {{ .Values.tracing.endpoint | quote }}
- name: TIDELOG_TRACING_SAMPLING_RATIO
  value: {{ .Values.tracing.samplingRatio | toJson | quote }}
{{- if .Values.tracing.caSecretName }}
- name: TIDELOG_TRACING_OTLP_CA_FILE
  value: /etc/tidelog/tracing-tls/ca.crt
{{- end }}
{{- end -}}
{{- end -}}
{{- define "tidelog.tracing.volumes" -}}
{{- if and .Values.tracing.enabled .Values.tracing.caSecretName -}}
- name: tracing-tls
  secret:
    secretName: {{ .Values.tracing.caSecretName }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end -}}
{{- end -}}
{{- define "tidelog.tracing.volumeMounts" -}}
{{- if and .Values.tracing.enabled .Values.tracing.caSecretName -}}
- name: tracing-tls
  mountPath: /etc/tidelog/tracing-tls
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Entries of `volumes:` (dict "root" $ "component" "broker" "id" 0) and `volumeMounts:` that all services have. */}}
{{- define "tidelog.serviceVolumes" -}}
- name: config
  configMap:
    name: {{ include "tidelog.fullname" .root }}-settings
- name: run
  emptyDir:
    sizeLimit: 16Mi
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- with include "tidelog.etcd.volumes" .root }}
{{ . }}
{{- end }}
{{- with include "tidelog.tls.volumes" . }}
{{ . }}
{{- end }}
{{- with include "tidelog.tracing.volumes" .root }}
{{ . }}
{{- end }}
{{- end -}}

{{- define "tidelog.serviceVolumeMounts" -}}
- name: config
  mountPath: /etc/tidelog/config
  readOnly: true
- name: run
  mountPath: /run/tidelog
- name: tmp
  mountPath: /tmp
{{- with include "tidelog.etcd.volumeMounts" . }}
{{ . }}
{{- end }}
{{- with include "tidelog.tls.volumeMounts" . }}
{{ . }}
{{- end }}
{{- with include "tidelog.tracing.volumeMounts" . }}
{{ . }}
{{- end }}
{{- end -}}
