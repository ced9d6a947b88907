{{/*
Checks of values that depend on each other, which the schema cannot express. Each check fails with one sentence that names the
value and what to do. Included once, by templates/configmap.yaml; other parts define theirs in their own files.
*/}}
{{- define "tidelog.validate" -}}
{{- include "tidelog.validate.names" . -}}
{{- include "tidelog.validate.settings" . -}}
{{- include "tidelog.validate.external" . -}}
{{- include "tidelog.validate.anonymous" . -}}
{{- include "tidelog.validate.users" . -}}
{{- if and .Values.tracing.enabled (not .Values.tracing.endpoint) -}}
{{- fail "tracing.endpoint: is empty, but tracing is enabled; set it to the address of your collector, such as http://otel-collector.observability:4317" -}}
{{- end -}}
{{- include "tidelog.validate.etcd" . -}}
{{- include "tidelog.validate.operations" . -}}
{{- include "tidelog.validate.pipeline" . -}}
{{- include "tidelog.validate.console" . -}}
{{- end -}}

{{/*
Kubernetes puts the name of a StatefulSet, with a hash of ten characters, into a label, which has at most 63. The last broker
has the longest name.
*/}}
{{- define "tidelog.validate.names" -}}
{{- if contains "." (include "tidelog.fullname" .) -}}
{{- fail (printf "fullnameOverride: %q contains a dot, but names of Services contain only letters, digits and '-'" (include "tidelog.fullname" .)) -}}
{{- end -}}
{{- if regexMatch "^[0-9]" (include "tidelog.fullname" .) -}}
{{- fail (printf "fullnameOverride: %q begins with a digit, but names of Services begin with a letter; set fullnameOverride to a name such as \"log\"" (include "tidelog.fullname" .)) -}}
{{- end -}}
{{- $last := include "tidelog.brokerName" (dict "root" . "id" (sub (add (int .Values.brokers.firstId) (int .Values.brokers.replicas)) 1)) -}}
{{- if gt (len $last) 52 -}}
{{- fail (printf "fullnameOverride: StatefulSet %q would have %d characters, and Kubernetes allows 52; set fullnameOverride to a shorter name" $last (len $last)) -}}
{{- end -}}
{{- include "tidelog.validate.labels" . -}}
{{- end -}}

{{/* Labels that the chart sets itself. With another value, Services and StatefulSets would not find their pods. */}}
{{- define "tidelog.validate.labels" -}}
{{- $pipeline := .Values.pipeline -}}
{{- $places := dict "commonLabels" .Values.commonLabels "brokers.podLabels" .Values.brokers.podLabels "controllers.podLabels" .Values.controllers.podLabels "groupCoordinators.podLabels" .Values.groupCoordinators.podLabels "etcd.podLabels" .Values.etcd.podLabels "roll.podLabels" .Values.roll.podLabels "console.podLabels" .Values.console.podLabels "pipeline.driver.podLabels" $pipeline.driver.podLabels "pipeline.executors.podLabels" $pipeline.executors.podLabels -}}
{{- $own := concat (include "tidelog.labels" (dict "root" (dict "Values" (dict "nameOverride" "" "commonLabels" dict) "Release" .Release "Chart" .Chart) "component" "broker") | fromYaml | keys) (list "tidelog.io/broker-id" "tidelog.io/archive") -}}
{{- range $place, $labels := $places -}}
{{- range $name, $_ := $labels -}}
{{- if has $name $own -}}
{{- fail (printf "%s: the chart sets %s; remove it" $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Settings that the chart sets itself. It refuses a user's value, because it would silently override it. */}}
{{- define "tidelog.chartsOwnSettings" -}}
listeners: listeners.internal, listeners.replication and listeners.external set them
listener.name.external.ssl.client.auth: listeners.external.tls.clientAuth sets it
advertised.listeners: listeners.external sets the addresses that clients outside the cluster receive
listener.security.protocol.map: listeners.internal, listeners.replication and listeners.external set the protocols
inter.broker.listener.name: brokers use a listener of their own, see listeners.replication
tidelog.inter.broker.other.listener.names: listeners.replication sets it
node.id: brokers.firstId sets the first id
broker.id: brokers.firstId sets the first id
log.dirs: each broker has one volume, see brokers.storage
log.dir: each broker has one volume, see brokers.storage
tidelog.shutdown.timeout.ms: terminationGracePeriodSeconds sets how long a stop may take
tidelog.tracing.otlp.endpoint: tracing sets it
tidelog.tracing.otlp.ca.file: tracing sets it
tidelog.tracing.sampling.ratio: tracing sets it
tidelog.metrics.listener: it is always 9404
tidelog.probes.listener: it is always 9405
tidelog.rpc.listener: it is always 9095
tidelog.rpc.advertised.address: it is the broker's service
tidelog.node.name: it is the pod's name
tidelog.log.format: it is always json
tidelog.etcd.endpoints: etcd.external names an external etcd
tidelog.etcd.prefix: etcd.prefix sets it, for the chart's Jobs, too
tidelog.etcd.username: etcd.auth and etcd.external.auth name Secrets
tidelog.etcd.password: etcd.auth and etcd.external.auth name Secrets
tidelog.rpc.tls.ca.file: tls sets it
tidelog.rpc.tls.cert.file: tls sets it
tidelog.rpc.tls.key.file: tls sets it
tidelog.rpc.allow.plaintext: tls sets it
tidelog.etcd.allow.plaintext: the chart sends no password without encryption
tidelog.etcd.tls.ca.file: tls and etcd.external set it
tidelog.etcd.tls.cert.file: tls and etcd.external set it
tidelog.etcd.tls.key.file: tls and etcd.external set it
{{- end -}}

{{- define "tidelog.validate.settings" -}}
{{- $own := include "tidelog.chartsOwnSettings" . | fromYaml -}}
{{- $places := dict "settings" .Values.settings "brokers.settings" .Values.brokers.settings "controllers.settings" .Values.controllers.settings "groupCoordinators.settings" .Values.groupCoordinators.settings -}}
{{- range $place, $settings := $places -}}
{{- range $name, $value := $settings -}}
{{- if hasKey $own $name -}}
{{- fail (printf "%s: the chart sets %s; remove it: %s" $place $name (get $own $name)) -}}
{{- end -}}
{{- /* Up to 2^53, every whole number is a float, as which Helm keeps it. */ -}}
{{- if and (or (kindIs "float64" $value) (kindIs "int64" $value)) (or (gt (float64 $value) 9007199254740992.0) (lt (float64 $value) -9007199254740992.0)) -}}
{{- fail (printf "%s: Helm would change %s, because it keeps only about 16 digits of a number; write the value in quotes" $place $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := include "tidelog.brokersChosenSettings" . | fromYaml -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings: the chart sets %s for brokers; set it in brokers.settings" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.brokers.rack.enabled (or (hasKey .Values.settings "broker.rack") (hasKey .Values.brokers.settings "broker.rack")) -}}
{{- fail "settings: broker.rack is the zone of the node; set brokers.rack.enabled to false to set another value" -}}
{{- end -}}
{{- $settings := include "tidelog.settings" (dict "root" . "own" (include "tidelog.brokersOwnSettings" . | fromYaml)) | fromYaml -}}
{{- range $name := list "default.replication.factor" "offsets.topic.replication.factor" "share.coordinator.state.topic.replication.factor" "transaction.state.log.replication.factor" -}}
{{- if gt (int (get $settings $name)) (int $.Values.brokers.replicas) -}}
{{- fail (printf "settings: %s is %d, but there are only %d brokers (brokers.replicas), so no such topic could be created" $name (int (get $settings $name)) (int $.Values.brokers.replicas)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.validate.external" -}}
{{- $external := .Values.listeners.external -}}
{{- if $external.enabled -}}
{{- $first := int .Values.brokers.firstId -}}
{{- $last := sub (add $first (int .Values.brokers.replicas)) 1 -}}
{{- range $external.brokers -}}
{{- if or (lt (int .id) $first) (gt (int .id) (int $last)) -}}
{{- fail (printf "listeners.external.brokers: there is no broker %d; the ids are %d to %d" (int .id) $first (int $last)) -}}
{{- end -}}
{{- end -}}
{{- if and (include "tidelog.externalHasTls" .) (not $external.tls.secretName) -}}
{{- fail (printf "listeners.external.tls.secretName: is empty, but securityProtocol is %s; name a Secret with tls-combined.pem" $external.securityProtocol) -}}
{{- end -}}
{{- if and $external.loadBalancerSourceRanges (ne $external.type "LoadBalancer") -}}
{{- fail (printf "listeners.external.loadBalancerSourceRanges: limits only load balancers, but type is %s; use networkPolicy.external.from instead, or set type to LoadBalancer" $external.type) -}}
{{- end -}}
{{- $ids := list -}}{{- range $external.brokers -}}{{- $ids = append $ids (int .id) -}}{{- end -}}
{{- if ne (len $ids) (len (uniq $ids)) -}}
{{- fail "listeners.external.brokers: an id is used twice" -}}
{{- end -}}
{{- $nodePorts := list -}}
{{- if and (eq $external.type "NodePort") $external.nodePorts.bootstrap -}}
{{- $nodePorts = append $nodePorts (int $external.nodePorts.bootstrap) -}}
{{- end -}}
{{- $told := list -}}
{{- range $index := until (int .Values.brokers.replicas) -}}
{{- $broker := dict "root" $ "id" (add $index $first) "index" $index -}}
{{- $host := include "tidelog.externalHost" $broker -}}
{{- $port := include "tidelog.externalPort" $broker | int -}}
{{- if and (eq $external.type "NodePort") (gt (include "tidelog.externalNodePort" $broker | int) 65535) -}}
{{- fail (printf "listeners.external: broker %d would have node port %s, and the last port is 65535; set a smaller listeners.external.nodePorts.firstBroker" (int $broker.id) (include "tidelog.externalNodePort" $broker)) -}}
{{- end -}}
{{- if gt $port 65535 -}}
{{- fail (printf "listeners.external: broker %d would have port %d, and the last port is 65535; set a smaller listeners.external.firstPort" (int $broker.id) $port) -}}
{{- end -}}
{{- $address := printf "%s:%d" $host $port -}}
{{- if and (has $address $told) (not (include "tidelog.externalIsDiscovered" $broker)) -}}
{{- fail (printf "listeners.external: two brokers would have the address %s; add {id} to host, or set firstPort or the ports of single brokers" $address) -}}
{{- end -}}
{{- $told = append $told $address -}}
{{- if eq $external.type "NodePort" -}}
{{- $nodePort := int (include "tidelog.externalNodePort" $broker) -}}
{{- if has $nodePort $nodePorts -}}
{{- fail (printf "listeners.external: node port %d is used twice; change listeners.external.nodePorts or the brokers' nodePort" $nodePort) -}}
{{- end -}}
{{- $nodePorts = append $nodePorts $nodePort -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Brokers do not know an anonymous client inside the cluster from one outside. If one of them may do everything, both may.
Values that say so with authorization.enabled are accepted.
*/}}
{{- define "tidelog.validate.anonymous" -}}
{{- $settings := include "tidelog.brokersOwnSettings" . | fromYaml -}}
{{- $superUsers := get $settings "super.users" | toString | splitList ";" -}}
{{- if and (get $settings "authorizer.class.name") (include "tidelog.externalAllowsAnonymous" .) (has "User:ANONYMOUS" $superUsers) -}}
{{- $external := .Values.listeners.external -}}
{{- $value := ternary "listeners.external.securityProtocol: is PLAINTEXT" (printf "listeners.external.tls.clientAuth: is %s" $external.tls.clientAuth) (eq $external.securityProtocol "PLAINTEXT") -}}
{{- $reason := ternary "authorization.superUsers names it" "a listener inside the cluster has no login" (has "User:ANONYMOUS" .Values.authorization.superUsers) -}}
{{- if hasKey .Values.brokers.settings "super.users" -}}{{- $reason = "brokers.settings names it" -}}{{- end -}}
{{- fail (printf "%s, so clients outside the cluster could do everything without a login, because User:ANONYMOUS is a super user (%s); set it to %s, or set authorization.enabled to false if everybody who reaches the brokers may do everything" $value $reason (ternary "SASL_SSL" "required" (eq $external.securityProtocol "PLAINTEXT"))) -}}
{{- end -}}
{{- end -}}
