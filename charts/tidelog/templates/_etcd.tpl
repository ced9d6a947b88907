{{/* The services' connection to etcd, and the bundled etcd. Owner: CHART-ETCD. */}}

{{/* Name of the bundled etcd's StatefulSet and headless service; its pods are NAME-0, NAME-1, ... */}}
{{- define "tidelog.etcd.name" -}}
{{- printf "%s-etcd" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* Domain of the members' names: POD.DOMAIN. */}}
{{- define "tidelog.etcd.domain" -}}
{{- printf "%s.%s.svc.%s" (include "tidelog.etcd.name" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* "https" if the bundled etcd uses TLS, otherwise "http". */}}
{{- define "tidelog.etcd.scheme" -}}
{{- if include "tidelog.tls.enabled" . }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* The endpoints of all members, comma-separated, for tidelog.etcd.endpoints. Clients choose among them. */}}
{{- define "tidelog.etcd.endpoints" -}}
{{- if .Values.etcd.bundled -}}
{{- $endpoints := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $endpoints = append $endpoints (printf "%s://%s-%d.%s:2379" (include "tidelog.etcd.scheme" $) (include "tidelog.etcd.name" $) $i (include "tidelog.etcd.domain" $)) -}}
{{- end -}}
{{- join "," $endpoints -}}
{{- else -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- end -}}
{{- end -}}

{{/* NAME=PEER-URL of each member, for etcd's --initial-cluster. */}}
{{- define "tidelog.etcd.initialCluster" -}}
{{- $members := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $name := printf "%s-%d" (include "tidelog.etcd.name" $) $i -}}
{{- $members = append $members (printf "%s=%s://%s.%s:2380" $name (include "tidelog.etcd.scheme" $) $name (include "tidelog.etcd.domain" $)) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{/* The Secret with ca.crt, tls.crt and tls.key that the services present to etcd; empty without TLS. */}}
{{- define "tidelog.etcd.clientSecretName" -}}
{{- if .Values.etcd.bundled -}}
{{- if include "tidelog.tls.enabled" . -}}
{{- include "tidelog.tls.etcdClientSecretName" . -}}
{{- end -}}
{{- else -}}
{{- .Values.etcd.external.tls.secretName -}}
{{- end -}}
{{- end -}}

{{/* The Secret with `username` and `password` of etcd's administrator; empty if etcd requires none. */}}
{{- define "tidelog.etcd.userSecretName" -}}
{{- if not .Values.etcd.bundled -}}
{{- .Values.etcd.external.auth.secretName -}}
{{- else if include "tidelog.etcd.hasPassword" . -}}
{{- .Values.etcd.auth.secretName | default (printf "%s-user" (include "tidelog.etcd.name" .)) -}}
{{- end -}}
{{- end -}}

{{/*
The same for a kind of service: (dict "root" $ "component" "broker"). In the bundled etcd, each kind has a user of its own,
which reaches only the keys that it needs (ADR 0065).
*/}}
{{- define "tidelog.etcd.serviceUserSecretName" -}}
{{- $own := dict "broker" "brokers" "controller" "controllers" "group-coordinator" "groupCoordinators" -}}
{{- if not .root.Values.etcd.bundled -}}
{{- include "tidelog.etcd.userSecretName" .root -}}
{{- else if include "tidelog.etcd.hasPassword" .root -}}
{{- get .root.Values.etcd.auth.serviceSecretNames (get $own .component) | default (printf "%s-user-%s" (include "tidelog.etcd.name" .root) .component) -}}
{{- end -}}
{{- end -}}

{{/* Secrets with a password that the chart creates, as a JSON object from the name to the user's name. */}}
{{- define "tidelog.etcd.ownSecrets" -}}
{{- $secrets := dict -}}
{{- if not .Values.etcd.auth.secretName -}}
{{- $_ := set $secrets (include "tidelog.etcd.userSecretName" .) "root" -}}
{{- end -}}
{{- $own := dict "broker" "brokers" "controller" "controllers" "group-coordinator" "groupCoordinators" -}}
{{- range $component, $key := $own -}}
{{- if not (get $.Values.etcd.auth.serviceSecretNames $key) -}}
{{- $_ := set $secrets (include "tidelog.etcd.serviceUserSecretName" (dict "root" $ "component" $component)) (printf "%s.tidelog" $component) -}}
{{- end -}}
{{- end -}}
{{- toJson $secrets -}}
{{- end -}}

{{/* Entries of `volumes:` and `volumeMounts:` with the passwords of the services, in /etc/tidelog/etcd-passwords. */}}
{{- define "tidelog.etcd.passwordVolumes" -}}
- name: etcd-passwords
  projected:
    defaultMode: 0440
    sources:
      {{- range $component := list "broker" "controller" "group-coordinator" }}
      - secret:
          name: {{ include "tidelog.etcd.serviceUserSecretName" (dict "root" $ "component" $component) }}
          items: [{key: password, path: {{ $component }}}]
      {{- end }}
{{- end -}}
{{- define "tidelog.etcd.passwordVolumeMounts" -}}
- {name: etcd-passwords, mountPath: /etc/tidelog/etcd-passwords, readOnly: true}
{{- end -}}

{{/* Whether the bundled etcd requires a password. Without TLS, everybody could read it on the network. */}}
{{- define "tidelog.etcd.hasPassword" -}}
{{- if and .Values.etcd.bundled .Values.etcd.auth.enabled (include "tidelog.tls.enabled" .) }}true{{ end -}}
{{- end -}}

{{/* Entries of `env:` for etcd's administrators and, (dict "root" $ "component" "broker"), for its services: endpoints,
prefix, user, TLS files. */}}
{{- define "tidelog.etcd.env" -}}
{{- include "tidelog.etcd.envOf" (dict "root" . "secret" (include "tidelog.etcd.userSecretName" .)) -}}
{{- end -}}
{{- define "tidelog.etcd.serviceEnv" -}}
{{- include "tidelog.etcd.envOf" (dict "root" .root "secret" (include "tidelog.etcd.serviceUserSecretName" .)) -}}
{{- end -}}
{{- define "tidelog.etcd.envOf" -}}
- name: TIDELOG_ETCD_ENDPOINTS
  value: {{ include "tidelog.etcd.endpoints" .root | quote }}
{{- with .root.Values.etcd.prefix }}
- name: TIDELOG_ETCD_PREFIX
  value: {{ . | quote }}
{{- end }}
{{- with .secret }}
- name: TIDELOG_ETCD_USERNAME
  valueFrom: {secretKeyRef: {name: {{ . }}, key: username}}
- name: TIDELOG_ETCD_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
{{- end }}
{{- if include "tidelog.etcd.clientSecretName" .root }}
- name: TIDELOG_ETCD_TLS_CA_FILE
  value: /etc/tidelog/etcd-tls/ca.crt
{{- if or .root.Values.etcd.bundled .root.Values.etcd.external.tls.clientCertificate }}
- name: TIDELOG_ETCD_TLS_CERT_FILE
  value: /etc/tidelog/etcd-tls/tls.crt
- name: TIDELOG_ETCD_TLS_KEY_FILE
  value: /etc/tidelog/etcd-tls/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{/* Entries of `volumes:` and `volumeMounts:` for these TLS files (/etc/tidelog/etcd-tls), or nothing. */}}
{{- define "tidelog.etcd.volumes" -}}
{{- with include "tidelog.etcd.clientSecretName" . -}}
- name: etcd-tls
  secret:
    secretName: {{ . }}
    # Only the pod's group may read it.
    defaultMode: 0440
{{- end -}}
{{- end -}}
{{- define "tidelog.etcd.volumeMounts" -}}
{{- if include "tidelog.etcd.clientSecretName" . -}}
- name: etcd-tls
  mountPath: /etc/tidelog/etcd-tls
  readOnly: true
{{- end -}}
{{- end -}}

{{/* Rules for etcd and TLS that the schema cannot express. */}}
{{- define "tidelog.validate.etcd" -}}
{{- if .Values.etcd.bundled -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidelog.etcd.name" .) -}}
{{- if ne (int .spec.replicas) (int $.Values.etcd.replicas) -}}
{{- fail (printf "etcd.replicas: this etcd was installed with %d member(s), and a value cannot change that to %d; add members by hand (docs/guides/kubernetes-etcd.md) or install a new release" (int .spec.replicas) (int $.Values.etcd.replicas)) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- if not .Values.etcd.external.endpoints -}}
{{- fail "etcd.external.endpoints: is empty, but etcd.bundled is false; name all members of your etcd, such as https://etcd-0.example:2379" -}}
{{- end -}}
{{- range .Values.etcd.external.endpoints -}}
{{- if and (hasPrefix "http://" .) $.Values.etcd.external.tls.secretName -}}
{{- fail (printf "etcd.external.endpoints: %s is not encrypted, but etcd.external.tls.secretName is set; use https:// or remove the Secret" .) -}}
{{- end -}}
{{- $isLoopback := regexMatch "^http://(localhost|127(\\.[0-9]{1,3}){3}|\\[::1\\]):[0-9]+$" . -}}
{{- if and (hasPrefix "http://" .) (not $isLoopback) $.Values.etcd.external.auth.secretName -}}
{{- fail (printf "etcd.external.endpoints: %s is not encrypted, so others could read the password of etcd.external.auth.secretName on the network; use https:// or remove the Secret" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tidelog.validate.metadata" . -}}
{{- if gt (mul 5 (int .Values.etcd.heartbeatIntervalMs)) (int .Values.etcd.electionTimeoutMs) -}}
{{- fail (printf "etcd.electionTimeoutMs: %d is too short for etcd.heartbeatIntervalMs %d; it must be at least five times as long" (int .Values.etcd.electionTimeoutMs) (int .Values.etcd.heartbeatIntervalMs)) -}}
{{- end -}}
{{- if and (include "tidelog.etcd.hasPassword" .) (not .Values.rbac.create) -}}
{{- range $name, $user := include "tidelog.etcd.ownSecrets" . | fromJson -}}
{{- if eq $user "root" -}}
{{- fail "etcd.auth.secretName: is empty, but rbac.create is false, so no Job may create it; name a Secret with `username` root and `password`" -}}
{{- else -}}
{{- fail (printf "etcd.auth.serviceSecretNames: one is empty, but rbac.create is false, so no Job may create it; name a Secret with `username` %s and `password`" $user) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tidelog.validate.tls" . -}}
{{- end -}}

{{/* A running release may not begin anew with empty metadata. The endpoints of an external etcd may change, as its members do. */}}
{{- define "tidelog.validate.metadata" -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidelog.brokerName" (dict "root" $ "id" .Values.brokers.firstId)) -}}
{{- $had := dict "TIDELOG_ETCD_ENDPOINTS" "" "TIDELOG_ETCD_PREFIX" "" -}}
{{- range .spec.template.spec.containers -}}
{{- range .env -}}
{{- if hasKey $had .name -}}{{- $_ := set $had .name .value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with get $had "TIDELOG_ETCD_ENDPOINTS" -}}
{{- $move := "or install a release beside this one and move to it (docs/guides/upgrades.md, From plaintext to tls.mode)" -}}
{{- $wasBundled := contains (printf "://%s-0.%s." (include "tidelog.etcd.name" $) (include "tidelog.etcd.name" $)) . -}}
{{- if ne $wasBundled $.Values.etcd.bundled -}}
{{- fail (printf "etcd.bundled: this release keeps its metadata in %s etcd, and would not know its topics with another etcd; set it to %t, %s" (ternary "the bundled" "an external" $wasBundled) $wasBundled $move) -}}
{{- end -}}
{{- $prefix := get $had "TIDELOG_ETCD_PREFIX" -}}
{{- if ne $prefix $.Values.etcd.prefix -}}
{{- fail (printf "etcd.prefix: this release keeps its metadata under %q, and would not know its topics under %q; keep the prefix, %s" $prefix $.Values.etcd.prefix $move) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Image of the init container of etcd's members. Upgrades keep the image of the installation, because a new version of the
services must not restart etcd.
*/}}
{{- define "tidelog.etcd.joinImage" -}}
{{- $image := include "tidelog.image" . -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidelog.etcd.name" .) -}}
{{- range dig "spec" "template" "spec" "initContainers" list . -}}
{{- if eq .name "join" -}}{{- $image = .image -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- default $image .Values.etcd.joinImage -}}
{{- end -}}

{{/* Entries of a ConfigMap's `data:`: each member's configuration. JSON is YAML, and `tidelog etcd join` reads it. */}}
{{- define "tidelog.etcd.config" -}}
{{- $scheme := include "tidelog.etcd.scheme" . -}}
{{- $certificate := dict "client-cert-auth" true "trusted-ca-file" "/etc/etcd/tls/ca.crt" "cert-file" "/etc/etcd/tls/tls.crt" "key-file" "/etc/etcd/tls/tls.key" -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $name := printf "%s-%d" (include "tidelog.etcd.name" $) $i -}}
{{- $host := printf "%s.%s" $name (include "tidelog.etcd.domain" $) -}}
{{- $config := dict
  "name" $name
  "data-dir" "/var/lib/etcd/data"
  "listen-client-urls" (printf "%s://0.0.0.0:2379" $scheme)
  "advertise-client-urls" (printf "%s://%s:2379" $scheme $host)
  "listen-peer-urls" (printf "%s://0.0.0.0:2380" $scheme)
  "initial-advertise-peer-urls" (printf "%s://%s:2380" $scheme $host)
  "listen-metrics-urls" "http://0.0.0.0:2381"
  "initial-cluster" (include "tidelog.etcd.initialCluster" $)
  "initial-cluster-token" (printf "%s-%s" $.Release.Namespace (include "tidelog.etcd.name" $))
  "initial-cluster-state" "new"
  "heartbeat-interval" (int $.Values.etcd.heartbeatIntervalMs)
  "election-timeout" (int $.Values.etcd.electionTimeoutMs)
  "quota-backend-bytes" (mul 1048576 (int64 $.Values.etcd.quotaBackendMiB))
  "auto-compaction-mode" "periodic"
  "auto-compaction-retention" $.Values.etcd.autoCompactionRetention
-}}
{{- if include "tidelog.tls.enabled" $ -}}
{{- $_ := set $config "client-transport-security" $certificate -}}
{{- $_ := set $config "peer-transport-security" $certificate -}}
{{- end }}
{{ $name }}.json: |
  {{- mergeOverwrite $config (deepCopy $.Values.etcd.extraConfig) | toPrettyJson | nindent 2 }}
{{- end -}}
{{- end -}}
