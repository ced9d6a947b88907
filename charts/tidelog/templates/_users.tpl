{{/*
Users of the listeners with a login, and how the release's own tools log in. After an installation or upgrade, a Job creates
the users of `users:`, their Secrets and their ACLs (ADR 0036). It logs in as the user admin, whom it writes to etcd first.
*/}}

{{/* Whether a listener has a login with SCRAM, so that there are users. */}}
{{- define "tidelog.users.enabled" -}}
{{- if include "tidelog.users.mechanisms" . | fromJsonArray }}true{{ end -}}
{{- end -}}

{{/* The SCRAM mechanisms of all listeners, as JSON. */}}
{{- define "tidelog.users.mechanisms" -}}
{{- $found := list -}}
{{- if hasPrefix "SASL_" (include "tidelog.internalTlsProtocol" .) -}}
{{- $found = concat $found .Values.listeners.internal.sasl.enabledMechanisms -}}
{{- end -}}
{{- if and .Values.listeners.external.enabled (hasPrefix "SASL_" .Values.listeners.external.securityProtocol) -}}
{{- $found = concat $found .Values.listeners.external.sasl.enabledMechanisms -}}
{{- end -}}
{{- $scram := list -}}
{{- range $found | uniq | sortAlpha -}}{{- if hasPrefix "SCRAM-" . -}}{{- $scram = append $scram . -}}{{- end -}}{{- end -}}
{{- toJson $scram -}}
{{- end -}}

{{- define "tidelog.users.name" -}}
{{- printf "%s-users" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* The Secret of a user: (dict "root" $ "name" "alice"). Its password, and client.properties for Kafka's clients. */}}
{{- define "tidelog.users.secretName" -}}
{{- printf "%s-user-%s" (include "tidelog.fullname" .root) .name -}}
{{- end -}}

{{/* The Secrets that the Job reads and writes, and those that it only reads, as JSON. */}}
{{- define "tidelog.users.ownSecrets" -}}
{{- $names := list (include "tidelog.users.secretName" (dict "root" . "name" "admin")) -}}
{{- range .Values.users -}}
{{- if not .secretName -}}{{- $names = append $names (include "tidelog.users.secretName" (dict "root" $ "name" .name)) -}}{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}
{{- define "tidelog.users.givenSecrets" -}}
{{- $names := list -}}
{{- range .Values.users -}}
{{- if .secretName -}}{{- $names = append $names .secretName -}}{{- end -}}
{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{/*
An object that a Job fills: (dict "root" $ "kind" "Secret" "name" "n" "component" "users"). The chart makes it empty, because
Kubernetes cannot restrict the creation of objects by name, so a Job that may create one Secret may create all of them. It is
a hook, so Helm neither changes nor deletes it later. An existing object is not rendered again.
*/}}
{{- define "tidelog.filledByJob" -}}
{{- if not (lookup "v1" .kind .root.Release.Namespace .name) }}
---
apiVersion: v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tidelog.labels" (dict "root" .root "component" .component) | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    helm.sh/hook-weight: "-15"
    helm.sh/hook-delete-policy: hook-failed
    helm.sh/resource-policy: keep
{{- end }}
{{- end -}}

{{/* What the Job creates, as JSON for `tidelog kubernetes users`. It contains no passwords. */}}
{{- define "tidelog.users.wanted" -}}
{{- $users := list -}}
{{- range .Values.users -}}
{{- $secret := .secretName | default (include "tidelog.users.secretName" (dict "root" $ "name" .name)) -}}
{{- $users = append $users (dict "name" .name "secret" $secret "isGiven" (ne (.secretName | default "") "") "acls" (.acls | default list)) -}}
{{- end -}}
{{- $inside := include "tidelog.internalTlsProtocol" . | default "PLAINTEXT" -}}
{{- $outside := ternary "SASL_SSL" .Values.listeners.external.securityProtocol (eq $inside "SASL_SSL") -}}
{{- dict "admin" (include "tidelog.users.secretName" (dict "root" . "name" "admin")) "record" (include "tidelog.users.name" .) "mechanisms" (include "tidelog.users.mechanisms" . | fromJsonArray) "users" $users "hasAuthorizer" .Values.authorization.enabled "insideProtocol" $inside "usersProtocol" $outside | toJson -}}
{{- end -}}

{{/* The Secret with the ca.crt that signed the brokers' certificates. */}}
{{- define "tidelog.client.caSecretName" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- .Values.tls.secret.brokers | default .Values.tls.secret.services -}}
{{- else -}}
{{- include "tidelog.tls.serviceSecretName" (dict "root" . "component" "controller") -}}
{{- end -}}
{{- end -}}

{{/* client.properties of the release's own tools if clients inside the cluster have TLS without a login. */}}
{{- define "tidelog.client.properties" -}}
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location=/etc/tidelog/client/ca.crt
{{- end -}}

{{/*
Entries of `env:`, `volumes:` and `volumeMounts:` with which the release's own tools connect to bootstrapAddress, or
nothing. The admin's Secret is optional, because the Job of the users creates it: before that, hooks use plaintext.
*/}}
{{- define "tidelog.client.env" -}}
{{- if include "tidelog.internalTlsProtocol" . -}}
- name: TIDELOG_COMMAND_CONFIG
  value: /etc/tidelog/client/client.properties
{{- end -}}
{{- end -}}
{{- define "tidelog.client.volumes" -}}
{{- include "tidelog.client.volumesOf" (dict "root" . "secret" (include "tidelog.users.secretName" (dict "root" . "name" "admin")) "isOptional" true) -}}
{{- end -}}
{{- define "tidelog.client.volumeMounts" -}}
{{- if include "tidelog.internalTlsProtocol" . -}}
- {name: client, mountPath: /etc/tidelog/client, readOnly: true}
{{- end -}}
{{- end -}}

{{/* The same volumes with the Secret of another user: (dict "root" $ "secret" NAME). */}}
{{- define "tidelog.client.volumesOf" -}}
{{- $protocol := include "tidelog.internalTlsProtocol" .root -}}
{{- if eq $protocol "SASL_SSL" -}}
- name: client
  secret:
    secretName: {{ .secret }}
    items: [{key: client.properties, path: client.properties}]
    defaultMode: 0440
    {{- if .isOptional }}
    optional: true
    {{- end }}
{{- else if eq $protocol "SSL" -}}
- name: client
  projected:
    defaultMode: 0440
    sources:
      - configMap:
          name: {{ include "tidelog.fullname" .root }}-settings
          items: [{key: client.properties, path: client.properties}]
      - secret:
          name: {{ include "tidelog.client.caSecretName" .root }}
          items: [{key: ca.crt, path: ca.crt}]
{{- end -}}
{{- end -}}

{{/* Rules for listeners, users and permissions that the schema cannot express. */}}
{{- define "tidelog.validate.users" -}}
{{- $internal := .Values.listeners.internal -}}
{{- if gt (len (without $internal.protocols "PLAINTEXT")) 1 -}}
{{- fail "listeners.internal.protocols: SSL and SASL_SSL have the same port; keep one of them" -}}
{{- end -}}
{{- if not (include "tidelog.tls.enabled" .) -}}
{{- with include "tidelog.internalTlsProtocol" . -}}
{{- fail (printf "listeners.internal.protocols: %s needs certificates, but tls.mode is disabled; set it to [PLAINTEXT], or tls.mode to generated in a new release" .) -}}
{{- end -}}
{{- if include "tidelog.replicationHasTls" . -}}
{{- fail "listeners.replication.protocols: SSL needs certificates, but tls.mode is disabled; set it to [PLAINTEXT], or tls.mode to generated in a new release" -}}
{{- end -}}
{{- end -}}
{{- if and (eq (include "tidelog.internalTlsProtocol" .) "SASL_SSL") (not (has "SCRAM-SHA-512" $internal.sasl.enabledMechanisms)) -}}
{{- fail "listeners.internal.sasl.enabledMechanisms: must contain SCRAM-SHA-512, with which the release's own tools log in" -}}
{{- end -}}
{{- if and .Values.users (not (include "tidelog.users.enabled" .)) -}}
{{- fail "users: no listener has a login with SCRAM; add SASL_SSL to listeners.internal.protocols" -}}
{{- end -}}
{{- if and (include "tidelog.users.enabled" .) (not .Values.rbac.create) (not .Values.usersJob.serviceAccountName) -}}
{{- fail "usersJob.serviceAccountName: is empty, but rbac.create is false; name a service account with the permissions of templates/users/rbac.yaml" -}}
{{- end -}}
{{- $names := list "admin" -}}
{{- range .Values.users -}}
{{- if has .name $names -}}
{{- fail (printf "users: the name %s is used twice; the chart itself creates admin" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- $user := .name -}}
{{- range .acls -}}
{{- if and .prefixed (has "*" (list .topic .group .transactionalId)) -}}
{{- fail (printf "users: an ACL of %s has the prefix *, which means only names that begin with *; remove prefixed, so that * means all" $user) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tidelog.validate.move" . -}}
{{- end -}}

{{/* A running release may not lose the listener that its clients or its brokers use before they have another. */}}
{{- define "tidelog.validate.move" -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidelog.brokerName" (dict "root" $ "id" .Values.brokers.firstId)) -}}
{{- $had := "" -}}
{{- range .spec.template.spec.containers -}}
{{- range .env -}}
{{- if eq .name "TIDELOG_LISTENERS" -}}{{- $had = .value -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $had -}}
{{- $keeps := dict "clients" false "brokers" false -}}
{{- range include "tidelog.listenerList" $ | fromJsonArray -}}
{{- if contains (printf "%s://" .name) $had -}}{{- $_ := set $keeps .for true -}}{{- end -}}
{{- end -}}
{{- if not $keeps.clients -}}
{{- fail (printf "listeners.internal.protocols: this release has %s, and clients would lose it before they have another; first set it to [PLAINTEXT, SASL_SSL], move the clients, and then remove the old one (docs/guides/upgrades.md)" (ternary "PLAINTEXT" "SASL_SSL" (contains "INTERNAL://" $had))) -}}
{{- end -}}
{{- if not $keeps.brokers -}}
{{- fail (printf "listeners.replication.protocols: this release has %s, and brokers could not replicate during the upgrade; first set it to [PLAINTEXT, SSL], and remove the old one with the next upgrade (docs/guides/upgrades.md)" (ternary "PLAINTEXT" "SSL" (contains "REPLICATION://" $had))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
