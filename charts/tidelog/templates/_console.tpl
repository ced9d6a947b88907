{{/*
The web console, a Deployment of one pod. Its users log in with the cluster's users (ADR 0063), and their sessions are in its
memory.
*/}}

{{- define "tidelog.console.name" -}}
{{- printf "%s-console" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* Whether the console itself has a certificate. */}}
{{- define "tidelog.console.hasTls" -}}
{{- if eq .Values.console.tls.termination "console" }}true{{ end -}}
{{- end -}}

{{- define "tidelog.console.port" -}}
{{- ternary 8443 8080 (eq (include "tidelog.console.hasTls" .) "true") -}}
{{- end -}}

{{- define "tidelog.console.portName" -}}
{{- ternary "https" "http" (eq (include "tidelog.console.hasTls" .) "true") -}}
{{- end -}}

{{/* The names by which browsers call the console, as JSON. It also answers to localhost, for `kubectl port-forward`. */}}
{{- define "tidelog.console.hostNames" -}}
{{- $name := include "tidelog.console.name" . -}}
{{- $inNamespace := printf "%s.%s" $name .Release.Namespace -}}
{{- $names := list $name $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.%s" $inNamespace .Values.clusterDomain) -}}
{{- toJson (concat $names .Values.console.hostNames) -}}
{{- end -}}

{{/* Whether the chart creates the console's certificate, and the Secret with it. */}}
{{- define "tidelog.console.hasOwnCertificate" -}}
{{- if and .Values.console.enabled (include "tidelog.console.hasTls" .) (not .Values.console.tls.secretName) (has .Values.tls.mode (list "generated" "certManager")) }}true{{ end -}}
{{- end -}}
{{- define "tidelog.console.certificateSecretName" -}}
{{- default (printf "%s-tls" (include "tidelog.console.name" .)) .Values.console.tls.secretName -}}
{{- end -}}

{{/* The names in that certificate, comma-separated. It has no name of a service, so that it is of no use at their RPCs. */}}
{{- define "tidelog.console.dnsNames" -}}
{{- join "," (append (include "tidelog.console.hostNames" . | fromJsonArray) "localhost") -}}
{{- end -}}

{{/* How the console connects to bootstrapAddress, as properties of Kafka's clients. They contain no login. */}}
{{- define "tidelog.console.properties" -}}
{{- $protocol := include "tidelog.internalTlsProtocol" . -}}
security.protocol={{ $protocol | default "PLAINTEXT" }}
{{- if eq $protocol "SASL_SSL" }}
sasl.mechanism=SCRAM-SHA-512
{{- end }}
{{- if $protocol }}
ssl.truststore.type=PEM
ssl.truststore.location=/etc/tidelog/client/ca.crt
{{- end }}
{{- end -}}

{{- define "tidelog.validate.console" -}}
{{- $console := .Values.console -}}
{{- if $console.enabled -}}
{{- $hasLogin := eq (include "tidelog.internalTlsProtocol" .) "SASL_SSL" -}}
{{- if and $console.login (not $hasLogin) -}}
{{- fail "console.login: clients inside the cluster have no login, so that nobody could log in to the console; add SASL_SSL to listeners.internal.protocols, or set console.login to false, which shows the cluster to whoever reaches the console" -}}
{{- end -}}
{{- if and (not $console.login) $hasLogin -}}
{{- fail "console.login: is false, but clients inside the cluster log in, and the console has no user of its own; set it to true" -}}
{{- end -}}
{{- if and (include "tidelog.console.hasTls" .) (not $console.tls.secretName) (not (include "tidelog.console.hasOwnCertificate" .)) -}}
{{- fail (printf "console.tls.secretName: is empty, and the chart makes no certificates, because tls.mode is %s; name a Secret with tls.crt and tls.key, or set console.tls.termination to proxy" .Values.tls.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
