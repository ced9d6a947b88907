{{/* TLS between the services and to the bundled etcd. Owner: CHART-ETCD. */}}

{{- define "tidelog.tls.enabled" -}}
{{- if ne .Values.tls.mode "disabled" }}true{{ end -}}
{{- end -}}

{{/*
Secrets with ca.crt, tls.crt and tls.key for a broker (dict "root" $ "component" "broker" "id" 0), for the services of
another kind (dict "root" $ "component" "controller"), for etcd's members and for etcd's clients.
*/}}
{{- define "tidelog.tls.serviceSecretName" -}}
{{- $own := dict "broker" "brokers" "controller" "controllers" "group-coordinator" "groupCoordinators" -}}
{{- if eq .root.Values.tls.mode "secret" -}}
{{- get .root.Values.tls.secret (get $own .component) | default .root.Values.tls.secret.services -}}
{{- else -}}
{{- include "tidelog.fullname" .root }}-{{ .component }}{{ if hasKey . "id" }}-{{ .id }}{{ end }}-tls
{{- end -}}
{{- end -}}
{{- define "tidelog.tls.etcdServerSecretName" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret.etcdServer }}{{ else }}{{ include "tidelog.fullname" . }}-etcd-tls{{ end -}}
{{- end -}}
{{- define "tidelog.tls.etcdClientSecretName" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret.etcdClient }}{{ else }}{{ include "tidelog.fullname" . }}-etcd-client-tls{{ end -}}
{{- end -}}

{{/*
Names in the certificate of a broker or of the services of another kind, comma-separated. A service that connects to a pod's address checks
the second name, such as `broker.tidelog`: the certificate must come from this release's authority, and its holder may run
anywhere. A service that is called checks the caller's name in the same way. With a name such as `broker-0.tidelog`, a
broker can speak only for itself.

Clients know a broker by its own Services and those of all brokers. Only its certificate has these names: nobody else,
neither another broker nor another kind of service, can answer clients in its place.
*/}}
{{- define "tidelog.tls.serviceDnsNames" -}}
{{- $names := list "tidelog" (printf "%s.tidelog" .component) "localhost" -}}
{{- if eq .component "broker" -}}
{{- $names = append $names (printf "broker-%d.tidelog" (int .id)) -}}
{{- $services := list (include "tidelog.brokerName" .) (include "tidelog.brokersServiceName" .root) (include "tidelog.bootstrapServiceName" .root) -}}
{{- if .root.Values.listeners.external.enabled -}}
{{- $services = concat $services (list (printf "%s-external" (include "tidelog.brokerName" .)) (printf "%s-external" (include "tidelog.bootstrapServiceName" .root))) -}}
{{- end -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $domain := .root.Values.clusterDomain -}}
{{- range $service := $services -}}
{{- $names = concat $names (list $service (printf "%s.%s" $service $namespace) (printf "%s.%s.svc" $service $namespace) (printf "%s.%s.svc.%s" $service $namespace $domain)) -}}
{{- end -}}
{{- $names = append $names (printf "%s-0.%s.%s.svc.%s" (include "tidelog.brokerName" .) (include "tidelog.brokersServiceName" .root) $namespace $domain) -}}
{{- $names = concat $names .root.Values.tls.extraDnsNames -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* The certificates of this release, as `certificates:` with the name of the Secret, common name and DNS names of each, and
whether the Secret also contains key and certificates in one file, which a listener for clients needs. */}}
{{- define "tidelog.tls.certificates" -}}
certificates:
{{- $parts := list (dict "root" $ "component" "controller") (dict "root" $ "component" "group-coordinator") }}
{{- range $index := until (int .Values.brokers.replicas) }}
{{- $parts = append $parts (dict "root" $ "component" "broker" "id" (add $index (int $.Values.brokers.firstId))) }}
{{- end }}
{{- range $part := $parts }}
  - {name: {{ include "tidelog.tls.serviceSecretName" $part }}, cn: {{ ternary "tidelog" (printf "tidelog-%s" $part.component) (eq $part.component "broker") }}, combined: {{ eq $part.component "broker" }}, dns: {{ include "tidelog.tls.serviceDnsNames" $part | quote }}}
{{- end }}
{{- if include "tidelog.console.hasOwnCertificate" . }}
  - {name: {{ include "tidelog.console.certificateSecretName" . }}, cn: tidelog-console, dns: {{ include "tidelog.console.dnsNames" . | quote }}}
{{- end }}
{{- if .Values.etcd.bundled }}
  - {name: {{ include "tidelog.tls.etcdServerSecretName" . }}, cn: etcd, dns: {{ include "tidelog.tls.etcdDnsNames" . | quote }}}
  - {name: {{ include "tidelog.tls.etcdClientSecretName" . }}, cn: tidelog-etcd-client, dns: tidelog}
{{- end }}
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

{{/* Entries of `env:`, `volumes:` (dict "root" $ "component" "broker" "id" 0) and `volumeMounts:` (/etc/tidelog/tls). */}}
{{- define "tidelog.tls.env" -}}
{{- if include "tidelog.tls.enabled" . -}}
- name: TIDELOG_RPC_TLS_CA_FILE
  value: /etc/tidelog/tls/ca.crt
- name: TIDELOG_RPC_TLS_CERT_FILE
  value: /etc/tidelog/tls/tls.crt
- name: TIDELOG_RPC_TLS_KEY_FILE
  value: /etc/tidelog/tls/tls.key
{{- else -}}
- name: TIDELOG_RPC_ALLOW_PLAINTEXT
  value: "true"
{{- end -}}
{{- end -}}
{{- define "tidelog.tls.volumes" -}}
{{- if include "tidelog.tls.enabled" .root -}}
- name: tls
  secret:
    secretName: {{ include "tidelog.tls.serviceSecretName" . }}
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
{{- $hadSecret := "" -}}
{{- range .spec.template.spec.volumes -}}
{{- if eq .name "tls" -}}{{- $hadTls = true -}}{{- $hadSecret = dig "secret" "secretName" "" . -}}{{- end -}}
{{- end -}}
{{- if ne $hadTls (eq (include "tidelog.tls.enabled" $) "true") -}}
{{- fail (printf "tls.mode: this release was installed %s TLS, which cannot be changed, because services with and without TLS cannot connect to each other; install a release beside this one and move to it (docs/guides/upgrades.md, From plaintext to tls.mode)" (ternary "with" "without" $hadTls)) -}}
{{- end -}}
{{- include "tidelog.validate.authority" (dict "root" $ "before" $hadSecret) -}}
{{- end -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- $own := .Values.tls.secret -}}
{{- if not (or $own.services (and $own.brokers $own.controllers $own.groupCoordinators)) -}}
{{- fail "tls.secret.brokers, tls.secret.controllers, tls.secret.groupCoordinators: tls.mode is secret; name the Secrets with ca.crt, tls.crt and tls.key of each kind of service, or one of all of them in tls.secret.services" -}}
{{- end -}}
{{- if .Values.etcd.bundled -}}
{{- if not (and .Values.tls.secret.etcdServer .Values.tls.secret.etcdClient) -}}
{{- fail "tls.secret.etcdServer, tls.secret.etcdClient: tls.mode is secret and etcd is bundled; name the Secrets of its members and of its clients" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The roll replaces pods one by one if their Secrets have other names. It would wait forever if the replaced pod could not
connect to the others: (dict "root" $ "before" the name of the running broker's Secret). Secrets of the same name change for
all pods at about the same time.
*/}}
{{- define "tidelog.validate.authority" -}}
{{- $wanted := include "tidelog.tls.serviceSecretName" (dict "root" .root "component" "broker" "id" .root.Values.brokers.firstId) -}}
{{- if and .before (include "tidelog.tls.enabled" .root) (ne .before $wanted) -}}
{{- $authorities := list -}}
{{- range $name := list .before $wanted -}}
{{- $secret := lookup "v1" "Secret" $.root.Release.Namespace $name -}}
{{- $authorities = append $authorities (dig "data" "ca.crt" "" $secret | b64dec | trim) -}}
{{- end -}}
{{- $had := first $authorities -}}
{{- $has := last $authorities -}}
{{- if and $had $has (not (contains $had $has)) (not (contains $has $had)) -}}
{{- fail (printf "tls.secret: the authority in ca.crt of Secret %s is not that of Secret %s, with which this release runs, so pods with the old and the new certificates could not connect to each other; use certificates of the same authority, or install a release beside this one and move to it (docs/guides/upgrades.md, From plaintext to tls.mode)" $wanted .before) -}}
{{- end -}}
{{- end -}}
{{- end -}}
