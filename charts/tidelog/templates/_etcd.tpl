{{/* How the services reach etcd. Owner: CHART-ETCD. */}}

{{/* Endpoints, comma-separated, as tidelog.etcd.endpoints takes them. */}}
{{- define "tidelog.etcd.endpoints" -}}
{{- printf "http://%s-etcd.%s.svc.%s:2379" (include "tidelog.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* Entries of `env:` of everything that talks to etcd: endpoints, prefix, user, TLS files. */}}
{{- define "tidelog.etcd.env" -}}
- name: TIDELOG_ETCD_ENDPOINTS
  value: {{ include "tidelog.etcd.endpoints" . | quote }}
{{- end -}}

{{/* Entries of `volumes:` and `volumeMounts:` for the same (/etc/tidelog/etcd-tls), or nothing. */}}
{{- define "tidelog.etcd.volumes" -}}{{- end -}}
{{- define "tidelog.etcd.volumeMounts" -}}{{- end -}}
