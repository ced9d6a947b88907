{{/* The brokers' listeners and their advertised addresses. Each template takes (dict "root" $ "id" 3 "index" 0). */}}

{{/* The entry of listeners.external.brokers for this broker, as JSON. */}}
{{- define "tidelog.externalBroker" -}}
{{- $found := dict -}}
{{- range .root.Values.listeners.external.brokers -}}
{{- if eq (int .id) (int $.id) -}}{{- $found = . -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "tidelog.externalNodePort" -}}
{{- $entry := include "tidelog.externalBroker" . | fromJson -}}
{{- $entry.nodePort | default (add .root.Values.listeners.external.nodePorts.firstBroker .index) | int -}}
{{- end -}}

{{/* The port that clients outside the cluster receive. */}}
{{- define "tidelog.externalPort" -}}
{{- $external := .root.Values.listeners.external -}}
{{- $entry := include "tidelog.externalBroker" . | fromJson -}}
{{- if $entry.port -}}
{{- int $entry.port -}}
{{- else if $external.firstPort -}}
{{- add (int $external.firstPort) .index -}}
{{- else if eq $external.type "NodePort" -}}
{{- include "tidelog.externalNodePort" . -}}
{{- else -}}
9094
{{- end -}}
{{- end -}}

{{/*
The host that clients outside the cluster receive. For a NodePort, it is the pod's node unless a name is given; for a
ClusterIP, the name of the Service; for a load balancer without a name, {address} (see tidelog.externalIsDiscovered).
*/}}
{{- define "tidelog.externalHost" -}}
{{- $external := .root.Values.listeners.external -}}
{{- $entry := include "tidelog.externalBroker" . | fromJson -}}
{{- if $entry.host -}}
{{- $entry.host -}}
{{- else if $external.host -}}
{{- $external.host | replace "{id}" (toString .id) -}}
{{- else if eq $external.type "NodePort" -}}
$(NODE_IP)
{{- else if $entry.loadBalancerIP -}}
{{- $entry.loadBalancerIP -}}
{{- else if eq $external.type "ClusterIP" -}}
{{- printf "%s-external.%s.svc.%s" (include "tidelog.brokerName" .) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- else -}}
{address}
{{- end -}}
{{- end -}}

{{/*
Whether the address of this broker's load balancer must be discovered, because it is unknown until the load balancer
exists. In this case, an init container waits for the address and writes the broker's advertised listeners.
*/}}
{{- define "tidelog.externalIsDiscovered" -}}
{{- $external := .root.Values.listeners.external -}}
{{- if and $external.enabled (eq $external.type "LoadBalancer") (eq (include "tidelog.externalHost" .) "{address}") -}}
true
{{- end -}}
{{- end -}}

{{/* The names of the Services whose addresses must be discovered, as JSON. */}}
{{- define "tidelog.discoveredServices" -}}
{{- $names := list -}}
{{- range $index := until (int .Values.brokers.replicas) -}}
{{- $broker := dict "root" $ "id" (add $index (int $.Values.brokers.firstId)) "index" $index -}}
{{- if include "tidelog.externalIsDiscovered" $broker -}}
{{- $names = append $names (printf "%s-external" (include "tidelog.brokerName" $broker)) -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Local if clients receive the address of the pod's own node, so that no other node forwards their traffic. */}}
{{- define "tidelog.externalTrafficPolicy" -}}
{{- $external := .root.Values.listeners.external -}}
{{- if $external.externalTrafficPolicy -}}
{{- $external.externalTrafficPolicy -}}
{{- else if and (eq $external.type "NodePort") (eq (include "tidelog.externalHost" .) "$(NODE_IP)") -}}
Local
{{- else -}}
Cluster
{{- end -}}
{{- end -}}

{{/* (dict "external" .Values.listeners.external "ip" ...) */}}
{{- define "tidelog.loadBalancer" -}}
{{- with .external.loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .external.loadBalancerSourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .ip }}
loadBalancerIP: {{ . }}
{{- end }}
{{- end -}}

{{- define "tidelog.listeners" -}}
INTERNAL://:9092,REPLICATION://:9093{{ if .root.Values.listeners.external.enabled }},EXTERNAL://:9094{{ end }}
{{- end -}}

{{- define "tidelog.advertisedListeners" -}}
{{- $host := include "tidelog.brokerHost" . -}}
INTERNAL://{{ $host }}:9092,REPLICATION://{{ $host }}:9093
{{- if .root.Values.listeners.external.enabled -}}
,EXTERNAL://{{ include "tidelog.externalHost" . }}:{{ include "tidelog.externalPort" . }}
{{- end -}}
{{- end -}}

{{/* Entries of `env:`. */}}
{{- define "tidelog.listenerEnv" -}}
{{- $host := include "tidelog.brokerHost" . -}}
- name: TIDELOG_LISTENERS
  value: {{ include "tidelog.listeners" . | quote }}
{{- if not (include "tidelog.externalIsDiscovered" .) }}
- name: TIDELOG_ADVERTISED_LISTENERS
  value: {{ include "tidelog.advertisedListeners" . | quote }}
{{- end }}
- name: TIDELOG_LISTENER_SECURITY_PROTOCOL_MAP
  value: INTERNAL:PLAINTEXT,REPLICATION:PLAINTEXT,EXTERNAL:{{ .root.Values.listeners.external.securityProtocol }}
- name: TIDELOG_INTER_BROKER_LISTENER_NAME
  value: REPLICATION
- name: TIDELOG_RPC_LISTENER
  value: "0.0.0.0:9095"
- name: TIDELOG_RPC_ADVERTISED_ADDRESS
  value: "{{ $host }}:9095"
{{- end -}}

{{/* Whether the external listener uses TLS. */}}
{{- define "tidelog.externalHasTls" -}}
{{- if and .Values.listeners.external.enabled (has .Values.listeners.external.securityProtocol (list "SSL" "SASL_SSL")) }}true{{ end -}}
{{- end -}}

{{/* The settings of the external listener by Kafka's names, as YAML. */}}
{{- define "tidelog.externalSettings" -}}
{{- $external := .Values.listeners.external -}}
{{- $prefix := "listener.name.external" -}}
{{- if include "tidelog.externalHasTls" . }}
{{ $prefix }}.ssl.keystore.type: PEM
{{ $prefix }}.ssl.keystore.location: /etc/tidelog/client-tls/tls-combined.pem
{{ $prefix }}.ssl.client.auth: {{ $external.tls.clientAuth }}
{{- if ne $external.tls.clientAuth "none" }}
{{ $prefix }}.ssl.truststore.type: PEM
{{ $prefix }}.ssl.truststore.location: /etc/tidelog/client-tls/ca.crt
{{- end }}
{{- end }}
{{- if and $external.enabled (hasPrefix "SASL_" $external.securityProtocol) }}
{{ $prefix }}.sasl.enabled.mechanisms: {{ join "," $external.sasl.enabledMechanisms }}
{{- end }}
{{- end -}}

{{/* All settings that only brokers have, by name: those of their listeners, then brokers.settings. */}}
{{- define "tidelog.brokersOwnSettings" -}}
{{- toYaml (mergeOverwrite (include "tidelog.externalSettings" . | fromYaml) (deepCopy .Values.brokers.settings)) -}}
{{- end -}}

{{/* Entries of `volumes:` and `volumeMounts:` of brokers for the certificate of the external listener. */}}
{{- define "tidelog.externalTls.volumes" -}}
{{- if include "tidelog.externalHasTls" . -}}
- name: client-tls
  secret:
    secretName: {{ .Values.listeners.external.tls.secretName }}
    defaultMode: 0440
{{- end -}}
{{- end -}}
{{- define "tidelog.externalTls.volumeMounts" -}}
{{- if include "tidelog.externalHasTls" . -}}
- name: client-tls
  mountPath: /etc/tidelog/client-tls
  readOnly: true
{{- end -}}
{{- end -}}
