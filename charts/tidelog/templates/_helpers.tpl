{{/* Names, labels and images for all templates of the chart. */}}

{{- define "tidelog.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that names with suffixes are valid. */}}
{{- define "tidelog.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimAll "-" -}}
{{- else -}}
{{- $name := include "tidelog.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimAll "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimAll "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that never change: (dict "root" $ "component" "broker"), or without a component, those of the release. */}}
{{- define "tidelog.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tidelog.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* All labels of an object: (dict "root" $ "component" "broker"). */}}
{{- define "tidelog.labels" -}}
{{ include "tidelog.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidelog
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "tidelog.chart" .root }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image of the services (also of hooks and tests). */}}
{{- define "tidelog.image" -}}
{{- include "tidelog.imageReference" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{/* The reference of an image: (dict "image" {registry, repository, tag, digest} "tag" DEFAULT_TAG). */}}
{{- define "tidelog.imageReference" -}}
{{- $repository := .image.repository -}}
{{- with .image.registry -}}{{- $repository = printf "%s/%s" . $repository -}}{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .tag .image.tag | toString) -}}
{{- end -}}
{{- end -}}

{{/* `imagePullSecrets:` of a pod, or nothing. */}}
{{- define "tidelog.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The ids of the brokers, comma-separated, starting at brokers.firstId. */}}
{{- define "tidelog.brokerIds" -}}
{{- $ids := list -}}
{{- range $i := until (int .Values.brokers.replicas) -}}
{{- $ids = append $ids (add $i (int $.Values.brokers.firstId)) -}}
{{- end -}}
{{- join "," $ids -}}
{{- end -}}

{{/* Name of the StatefulSet and of the Service of one broker: (dict "root" $ "id" 0). Its pod is NAME-0. */}}
{{- define "tidelog.brokerName" -}}
{{- printf "%s-broker-%d" (include "tidelog.fullname" .root) (int .id) -}}
{{- end -}}

{{/* Host of a broker inside the cluster: the name of its Service, whose address does not change with its pods. */}}
{{- define "tidelog.brokerHost" -}}
{{- printf "%s.%s.svc.%s" (include "tidelog.brokerName" .) .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{- define "tidelog.brokersServiceName" -}}
{{- printf "%s-brokers" (include "tidelog.fullname" .) -}}
{{- end -}}

{{- define "tidelog.bootstrapServiceName" -}}
{{- printf "%s-bootstrap" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* The address for clients inside the cluster: that of the listener with TLS, if there is one. */}}
{{- define "tidelog.bootstrapAddress" -}}
{{- $port := ternary 9096 9092 (ne (include "tidelog.internalTlsProtocol" .) "") -}}
{{- printf "%s.%s.svc.%s:%d" (include "tidelog.bootstrapServiceName" .) .Release.Namespace .Values.clusterDomain $port -}}
{{- end -}}

{{- define "tidelog.controllerName" -}}
{{- printf "%s-controller" (include "tidelog.fullname" .) -}}
{{- end -}}

{{- define "tidelog.groupCoordinatorName" -}}
{{- printf "%s-group-coordinator" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* Service account of brokers, controllers and coordinators. Hooks have their own (_roll.tpl). */}}
{{- define "tidelog.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidelog.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The pod's security context for the pod security standard `restricted`: the images' user, and its group for volumes. */}}
{{- define "tidelog.podSecurityContext" -}}
{{- $restricted := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $restricted (deepCopy .Values.podSecurityContext)) -}}
{{- end -}}

{{/* The containers' security context for the same standard. */}}
{{- define "tidelog.containerSecurityContext" -}}
{{- $restricted := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $restricted (deepCopy .Values.containerSecurityContext)) -}}
{{- end -}}

{{/* Environment variables that describe the pod and its node, from the downward API. */}}
{{- define "tidelog.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: NODE_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end -}}
