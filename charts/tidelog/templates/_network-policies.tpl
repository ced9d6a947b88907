{{/* Parts of network-policies.yaml. Owner: CHART-ETCD. */}}

{{/* The peers for the three services of this release. */}}
{{- define "tidelog.networkPolicy.services" -}}
- podSelector:
    matchLabels:
      {{- include "tidelog.selectorLabels" (dict "root" $) | nindent 6 }}
    matchExpressions:
      - key: app.kubernetes.io/component
        operator: In
        values: [broker, controller, group-coordinator]
{{- end -}}

{{/* The rule for readers of metrics: (dict "root" $ "port" 9404). It includes the release's own pods, because the roll reads brokers' metrics. */}}
{{- define "tidelog.networkPolicy.metrics" -}}
- ports: [{port: {{ .port }}}]
  {{- with .root.Values.networkPolicy.metrics.from }}
  from:
    - podSelector:
        matchLabels:
          {{- include "tidelog.selectorLabels" (dict "root" $.root) | nindent 10 }}
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* `egress:` if it is restricted: DNS, this release, an external etcd, and Kubernetes' API for the pods that use it. */}}
{{- define "tidelog.networkPolicy.egress" -}}
{{- $policy := .root.Values.networkPolicy -}}
{{- if $policy.egress.enabled -}}
egress:
  - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
  - to:
      - podSelector:
          matchLabels:
            {{- include "tidelog.selectorLabels" (dict "root" .root) | nindent 12 }}
  {{- if not .root.Values.etcd.bundled }}
  - ports:
      {{- range .root.Values.etcd.external.endpoints }}
      - {port: {{ regexFind ":[0-9]+$" . | trimPrefix ":" | default "2379" }}}
      {{- end }}
  {{- end }}
  {{- if .withApi }}
  # Kubernetes' API, which provides the node's zone: the port of its Service and the usual port of its pods.
  - ports: [{port: 443}, {port: 6443}]
  {{- end }}
  {{- with $policy.egress.extra }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}
