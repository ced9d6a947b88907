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

{{/* Whether clients inside the cluster have a listener without TLS. */}}
{{- define "tidelog.internalHasPlaintext" -}}
{{- if has "PLAINTEXT" .Values.listeners.internal.protocols }}true{{ end -}}
{{- end -}}

{{/* The protocol of the listener with TLS for clients inside the cluster, SASL_SSL or SSL; empty if there is none. */}}
{{- define "tidelog.internalTlsProtocol" -}}
{{- range without .Values.listeners.internal.protocols "PLAINTEXT" }}{{ . }}{{ end -}}
{{- end -}}

{{/* Whether brokers can replicate over TLS, and whether they can without it. */}}
{{- define "tidelog.replicationHasTls" -}}
{{- if has "SSL" .Values.listeners.replication.protocols }}true{{ end -}}
{{- end -}}
{{- define "tidelog.replicationHasPlaintext" -}}
{{- if has "PLAINTEXT" .Values.listeners.replication.protocols }}true{{ end -}}
{{- end -}}

{{/*
The brokers' listeners as JSON, in the order of their ports. A protocol has a port of its own, so that a running cluster can
have both protocols while it moves from one to the other, and its addresses are those of a new installation in the end.
*/}}
{{- define "tidelog.listenerList" -}}
{{- $listeners := list -}}
{{- if include "tidelog.internalHasPlaintext" . -}}
{{- $listeners = append $listeners (dict "name" "INTERNAL" "port" 9092 "portName" "kafka" "protocol" "PLAINTEXT" "for" "clients") -}}
{{- end -}}
{{- if include "tidelog.replicationHasPlaintext" . -}}
{{- $listeners = append $listeners (dict "name" "REPLICATION" "port" 9093 "portName" "replication" "protocol" "PLAINTEXT" "for" "brokers") -}}
{{- end -}}
{{- with include "tidelog.internalTlsProtocol" . -}}
{{- $listeners = append $listeners (dict "name" "CLIENTS" "port" 9096 "portName" "clients" "protocol" . "for" "clients") -}}
{{- end -}}
{{- if include "tidelog.replicationHasTls" . -}}
{{- $listeners = append $listeners (dict "name" "PEERS" "port" 9097 "portName" "peers" "protocol" "SSL" "for" "brokers") -}}
{{- end -}}
{{- toJson $listeners -}}
{{- end -}}

{{- define "tidelog.listeners" -}}
{{- $listeners := list -}}
{{- range include "tidelog.listenerList" .root | fromJsonArray -}}
{{- $listeners = append $listeners (printf "%s://:%d" .name (int .port)) -}}
{{- end -}}
{{- if .root.Values.listeners.external.enabled -}}
{{- $listeners = append $listeners "EXTERNAL://:9094" -}}
{{- end -}}
{{- join "," $listeners -}}
{{- end -}}

{{- define "tidelog.advertisedListeners" -}}
{{- $host := include "tidelog.brokerHost" . -}}
{{- $listeners := list -}}
{{- range include "tidelog.listenerList" .root | fromJsonArray -}}
{{- $listeners = append $listeners (printf "%s://%s:%d" .name $host (int .port)) -}}
{{- end -}}
{{- if .root.Values.listeners.external.enabled -}}
{{- $listeners = append $listeners (printf "EXTERNAL://%s:%s" (include "tidelog.externalHost" .) (include "tidelog.externalPort" .)) -}}
{{- end -}}
{{- join "," $listeners -}}
{{- end -}}

{{- define "tidelog.listenerProtocols" -}}
{{- $protocols := list -}}
{{- range include "tidelog.listenerList" . | fromJsonArray -}}
{{- $protocols = append $protocols (printf "%s:%s" .name .protocol) -}}
{{- end -}}
{{- join "," (append $protocols (printf "EXTERNAL:%s" .Values.listeners.external.securityProtocol)) -}}
{{- end -}}

{{/* `ports:` of a Service with these listeners: (dict "root" $ "for" "clients"), without "for" those of brokers, too. */}}
{{- define "tidelog.servicePorts" -}}
{{- range include "tidelog.listenerList" .root | fromJsonArray }}
{{- if or (not $.for) (eq $.for .for) }}
- {name: {{ .portName }}, port: {{ .port }}, targetPort: {{ .portName }}}
{{- end }}
{{- end }}
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
  value: {{ include "tidelog.listenerProtocols" .root }}
- name: TIDELOG_INTER_BROKER_LISTENER_NAME
  value: {{ ternary "PEERS" "REPLICATION" (eq (include "tidelog.replicationHasTls" .root) "true") }}
{{- if and (include "tidelog.replicationHasTls" .root) (include "tidelog.replicationHasPlaintext" .root) }}
- name: TIDELOG_INTER_BROKER_OTHER_LISTENER_NAMES
  value: REPLICATION
{{- end }}
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

{{/*
The settings of the listeners inside the cluster by Kafka's names, as YAML. They use the broker's certificate of `tls`. On
PEERS, whoever has a certificate of the services is the user tidelog-services; others are refused.
*/}}
{{- define "tidelog.internalSettings" -}}
{{- $internal := .Values.listeners.internal -}}
{{- with include "tidelog.internalTlsProtocol" . }}
listener.name.clients.ssl.keystore.type: PEM
listener.name.clients.ssl.keystore.location: /etc/tidelog/tls/tls-combined.pem
listener.name.clients.ssl.client.auth: none
{{- if hasPrefix "SASL_" . }}
listener.name.clients.sasl.enabled.mechanisms: {{ join "," $internal.sasl.enabledMechanisms }}
{{- end }}
{{- end }}
{{- if include "tidelog.replicationHasTls" . }}
listener.name.peers.ssl.keystore.type: PEM
listener.name.peers.ssl.keystore.location: /etc/tidelog/tls/tls-combined.pem
listener.name.peers.ssl.truststore.type: PEM
listener.name.peers.ssl.truststore.location: /etc/tidelog/tls/ca.crt
listener.name.peers.ssl.client.auth: required
listener.name.peers.ssl.principal.mapping.rules: RULE:^CN=tidelog$/tidelog-services/
{{- end }}
{{- end -}}

{{/*
Whether clients outside the cluster may connect without a login and without a certificate. Brokers know them as
User:ANONYMOUS, like the clients of the listeners inside the cluster that have no login.
*/}}
{{- define "tidelog.externalAllowsAnonymous" -}}
{{- $external := .Values.listeners.external -}}
{{- if $external.enabled -}}
{{- if or (eq $external.securityProtocol "PLAINTEXT") (and (eq $external.securityProtocol "SSL") (ne $external.tls.clientAuth "required")) }}true{{ end -}}
{{- end -}}
{{- end -}}

{{/*
The authorizer's settings. While a listener inside the cluster tells nobody's name, whoever reaches it may do everything, as
before there was an authorizer: brokers replicate over it, or clients have not moved to the listener with TLS yet. The name
ANONYMOUS does not tell the listener, so tidelog.validate.anonymous refuses clients outside who would have it, too.
*/}}
{{- define "tidelog.authorizationSettings" -}}
{{- if .Values.authorization.enabled }}
{{- $super := list "User:admin" -}}
{{- if include "tidelog.replicationHasTls" . -}}{{- $super = append $super "User:tidelog-services" -}}{{- end -}}
{{- if or (include "tidelog.internalHasPlaintext" .) (eq (include "tidelog.internalTlsProtocol" .) "SSL") (include "tidelog.replicationHasPlaintext" .) -}}
{{- $super = append $super "User:ANONYMOUS" -}}
{{- end }}
authorizer.class.name: org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users: {{ join ";" (concat $super .Values.authorization.superUsers) | quote }}
{{- end }}
{{- end -}}

{{/* The settings of brokers that the chart chooses: those of their listeners and of the authorizer. */}}
{{- define "tidelog.brokersChosenSettings" -}}
{{- $chosen := dict -}}
{{- range list "tidelog.internalSettings" "tidelog.externalSettings" "tidelog.authorizationSettings" -}}
{{- $chosen = mergeOverwrite $chosen (include . $ | fromYaml) -}}
{{- end -}}
{{- toYaml $chosen -}}
{{- end -}}

{{/* All settings that only brokers have, by name: those that the chart chooses, then brokers.settings. */}}
{{- define "tidelog.brokersOwnSettings" -}}
{{- toYaml (mergeOverwrite (include "tidelog.brokersChosenSettings" . | fromYaml) (deepCopy .Values.brokers.settings)) -}}
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
