{{/* (dict "root" $ "component" "prometheus") */}}
{{- define "stack.selectorLabels" -}}
app.kubernetes.io/name: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end -}}

{{- define "stack.labels" -}}
{{ include "stack.selectorLabels" . }}
app.kubernetes.io/part-of: tidelog-observability
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- define "stack.name" -}}
{{- printf "%s-%s" (.root.Release.Name | trunc 40 | trimSuffix "-") .component -}}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "component" "grafana" "suffix" "-dashboards") */}}
{{- define "stack.metadata" -}}
name: {{ include "stack.name" . }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "stack.labels" . | nindent 2 }}
{{- end -}}

{{- define "stack.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
fsGroup: {{ .user }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "stack.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The names of the release's own objects, as the chart below makes them. */}}
{{- define "stack.tidelogFullname" -}}
{{- include "tidelog.fullname" .Subcharts.tidelog -}}
{{- end -}}
