{{/* TLS between the services and to the bundled etcd. Owner: CHART-ETCD. */}}

{{- define "tidelog.tls.enabled" -}}
{{- if ne .Values.tls.mode "disabled" }}true{{ end -}}
{{- end -}}

{{/* Secrets with ca.crt, tls.crt and tls.key for the services, for etcd's members and for etcd's clients. */}}
{{- define "tidelog.tls.servicesSecretName" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret.services }}{{ else }}{{ include "tidelog.fullname" . }}-tls{{ end -}}
{{- end -}}
{{- define "tidelog.tls.etcdServerSecretName" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret.etcdServer }}{{ else }}{{ include "tidelog.fullname" . }}-etcd-tls{{ end -}}
{{- end -}}
{{- define "tidelog.tls.etcdClientSecretName" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret.etcdClient }}{{ else }}{{ include "tidelog.fullname" . }}-etcd-client-tls{{ end -}}
{{- end -}}

{{/*
Names in the services' certificate, comma-separated. A service that connects to a pod's address checks the first name,
`tidelog`: the certificate must come from this release's authority, and its holder may run anywhere.
*/}}
{{- define "tidelog.tls.servicesDnsNames" -}}
{{- $svc := printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- $names := list "tidelog" (include "tidelog.fullname" .) "localhost" -}}
{{- $names = append $names (printf "*.%s" $svc) -}}
{{- $names = append $names (printf "*.%s.svc" .Release.Namespace) -}}
{{- $names = append $names (printf "*.%s" .Release.Namespace) -}}
{{- $names = append $names (printf "*.%s.%s" (include "tidelog.brokersServiceName" .) $svc) -}}
{{- join "," (concat $names .Values.tls.extraDnsNames) -}}
{{- end -}}

{{/*
Names in the certificate of etcd's members. A member resolves the address of a connecting member, by the address (the
wildcard matches) or by each name.
*/}}
{{- define "tidelog.tls.etcdDnsNames" -}}
{{- $names := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $names = append $names (printf "%s-%d.%s" (include "tidelog.etcd.name" $) $i (include "tidelog.etcd.domain" $)) -}}
{{- end -}}
{{- $names = append $names (printf "*.%s" (include "tidelog.etcd.domain" .)) -}}
{{- join "," (append $names "localhost") -}}
{{- end -}}

{{/* Entries of `env:`, `volumes:`, `volumeMounts:` (/etc/tidelog/tls) of each service, or nothing. */}}
{{- define "tidelog.tls.env" -}}
{{- if include "tidelog.tls.enabled" . -}}
- name: TIDELOG_RPC_TLS_CA_FILE
  value: /etc/tidelog/tls/ca.crt
- name: TIDELOG_RPC_TLS_CERT_FILE
  value: /etc/tidelog/tls/tls.crt
- name: TIDELOG_RPC_TLS_KEY_FILE
  value: /etc/tidelog/tls/tls.key
{{- end -}}
{{- end -}}
{{- define "tidelog.tls.volumes" -}}
{{- if include "tidelog.tls.enabled" . -}}
- name: tls
  secret:
    secretName: {{ include "tidelog.tls.servicesSecretName" . }}
    defaultMode: 0440
{{- end -}}
{{- end -}}
{{- define "tidelog.tls.volumeMounts" -}}
{{- if include "tidelog.tls.enabled" . -}}
- name: tls
  mountPath: /etc/tidelog/tls
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Rules for TLS that the schema cannot express. */}}
{{- define "tidelog.validate.tls" -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidelog.brokerName" (dict "root" $ "id" .Values.brokers.firstId)) -}}
{{- $hadTls := false -}}
{{- range .spec.template.spec.volumes -}}
{{- if eq .name "tls" -}}{{- $hadTls = true -}}{{- end -}}
{{- end -}}
{{- if ne $hadTls (eq (include "tidelog.tls.enabled" $) "true") -}}
{{- fail (printf "tls.mode: this release was installed %s TLS, which cannot be changed, because services with and without TLS cannot connect to each other; install a new release" (ternary "with" "without" $hadTls)) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- if not .Values.tls.secret.services -}}
{{- fail "tls.secret.services: is empty, but tls.mode is secret; name the Secret with ca.crt, tls.crt and tls.key of the services" -}}
{{- end -}}
{{- if .Values.etcd.bundled -}}
{{- if not (and .Values.tls.secret.etcdServer .Values.tls.secret.etcdClient) -}}
{{- fail "tls.secret.etcdServer, tls.secret.etcdClient: tls.mode is secret and etcd is bundled; name the Secrets of its members and of its clients" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
