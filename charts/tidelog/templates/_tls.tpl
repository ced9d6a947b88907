{{/* TLS between the services. Owner: CHART-ETCD. */}}

{{/* Entries of `env:`, `volumes:`, `volumeMounts:` (/etc/tidelog/tls) of each service, or nothing. */}}
{{- define "tidelog.tls.env" -}}{{- end -}}
{{- define "tidelog.tls.volumes" -}}{{- end -}}
{{- define "tidelog.tls.volumeMounts" -}}{{- end -}}
