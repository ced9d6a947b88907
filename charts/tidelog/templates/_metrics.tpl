{{/* Monitors, rules, dashboards. Owner: CHART-ETCD, DASHBOARDS. */}}

{{/* Labels that rules and dashboards expect (rules/README.md), derived from the pod's labels. */}}
{{- define "tidelog.metrics.relabelings" -}}
- sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_instance]
  targetLabel: release
- sourceLabels: [__meta_kubernetes_pod_label_app_kubernetes_io_component]
  targetLabel: component
- sourceLabels: [__meta_kubernetes_pod_label_tidelog_io_broker_id]
  targetLabel: broker
{{- end -}}

{{/* The common part of both monitors: (.Values.metrics.serviceMonitor). */}}
{{- define "tidelog.metrics.endpoint" -}}
- port: metrics
  path: /metrics
  {{- with .interval }}
  interval: {{ . }}
  {{- end }}
  {{- with .scrapeTimeout }}
  scrapeTimeout: {{ . }}
  {{- end }}
  relabelings:
    {{- include "tidelog.metrics.relabelings" . | nindent 4 }}
    {{- with .relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Pods that have metrics: those of the services and of the bundled etcd, not those of jobs and tests. */}}
{{- define "tidelog.metrics.podSelector" -}}
matchLabels:
  {{- include "tidelog.selectorLabels" (dict "root" $) | nindent 2 }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: [broker, controller, group-coordinator, etcd]
{{- end -}}

{{/* The address of the runbooks, without a slash at its end. */}}
{{- define "tidelog.metrics.runbookUrl" -}}
{{- trimSuffix "/" (default (printf "configmap/%s-runbooks" (include "tidelog.fullname" .)) .Values.metrics.prometheusRule.runbookUrl) -}}
{{- end -}}

{{- define "tidelog.validate.metrics" -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor.enabled, metrics.podMonitor.enabled: enable only one of the two, because both would scrape everything twice" -}}
{{- end -}}
{{- end -}}
