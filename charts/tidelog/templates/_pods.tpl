{{/* Common parts of the pods of all three services. Each template takes (dict "root" $ "component" "broker" "values" ...). */}}

{{/*
`metadata:` of a pod template. It omits the chart's version, because a new version alone must not replace pods. "settings"
is the text of the pod's settings: if it changes, the pod must be replaced.
*/}}
{{- define "tidelog.podMetadata" -}}
labels:
  {{- include "tidelog.selectorLabels" (dict "root" .root "component" .component) | nindent 2 }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .extraLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/settings: {{ .settings | sha256sum }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The part of a pod's spec with its service account and its scheduling. */}}
{{- define "tidelog.podPlacement" -}}
serviceAccountName: {{ include "tidelog.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "tidelog.imagePullSecrets" .root }}
securityContext:
  {{- include "tidelog.podSecurityContext" .root | nindent 2 }}
terminationGracePeriodSeconds: {{ .values.terminationGracePeriodSeconds }}
# Names inside the cluster have four dots. With Kubernetes' default of 5, each lookup would first try three wrong names.
dnsConfig:
  options:
    - name: ndots
      value: "2"
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "tidelog.affinity" . }}
affinity:
  {{- . | trim | nindent 2 }}
{{- end }}
{{- with include "tidelog.topologySpread" . }}
topologySpreadConstraints:
  {{- . | trim | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tidelog.affinity" -}}
{{- if .values.affinity }}
{{- toYaml .values.affinity }}
{{- else if eq .values.antiAffinity "hard" }}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- include "tidelog.selectorLabels" . | nindent 10 }}
{{- else if eq .values.antiAffinity "soft" }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "tidelog.selectorLabels" . | nindent 12 }}
{{- end }}
{{- end -}}

{{- define "tidelog.topologySpread" -}}
{{- $zoneSpread := .values.zoneSpread | default "soft" -}}
{{- if kindIs "slice" .values.topologySpreadConstraints }}
{{- with .values.topologySpreadConstraints }}
{{- toYaml . }}
{{- end }}
{{- else if ne $zoneSpread "none" }}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" (eq $zoneSpread "hard") }}
  labelSelector:
    matchLabels:
      {{- include "tidelog.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
The probes have a port of their own, which responds from the start, also during the recovery of logs. No NetworkPolicy
opens it: the node of a pod may always connect to the pod. Startup and liveness probes check whether the process is alive, the readiness probe whether it serves requests.
*/}}
{{- define "tidelog.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: probes}
  {{- toYaml .values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: probes}
  {{- toYaml .values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  {{- toYaml .values.probes.readiness | nindent 2 }}
{{- end -}}

{{/* The container's image, security and resources. */}}
{{- define "tidelog.container" -}}
image: {{ include "tidelog.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "tidelog.containerSecurityContext" .root | nindent 2 }}
{{- with .values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A Deployment of controllers or coordinators:
(dict "root" $ "component" "controller" "name" ... "values" ... "ports" ... "env" further entries, or "").
*/}}
{{- define "tidelog.deployment" -}}
{{- $settings := include "tidelog.properties" (dict "root" .root "own" .values.settings) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "tidelog.labels" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  revisionHistoryLimit: 3
  strategy:
    type: RollingUpdate
    rollingUpdate:
      {{- if eq .values.antiAffinity "hard" }}
      # There may be no node left for an additional pod.
      maxSurge: 0
      maxUnavailable: 1
      {{- else }}
      maxSurge: 1
      maxUnavailable: 0
      {{- end }}
  selector:
    matchLabels:
      {{- include "tidelog.selectorLabels" (dict "root" .root "component" .component) | nindent 6 }}
  template:
    metadata:
      {{- include "tidelog.podMetadata" (dict "root" .root "component" .component "values" .values "settings" $settings) | nindent 6 }}
    spec:
      {{- include "tidelog.podPlacement" (dict "root" .root "component" .component "values" .values) | nindent 6 }}
      {{- with .values.extraInitContainers }}
      initContainers:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          args: [{{ .component }}, --config, /etc/tidelog/config/{{ .component }}.properties]
          {{- include "tidelog.container" . | nindent 10 }}
          ports:
            {{- toYaml .ports | nindent 12 }}
          env:
            {{- include "tidelog.serviceEnv" . | nindent 12 }}
            - name: TIDELOG_NODE_NAME
              value: $(POD_NAME)
            {{- with .env }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with .values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- include "tidelog.probes" . | nindent 10 }}
          volumeMounts:
            {{- include "tidelog.serviceVolumeMounts" .root | nindent 12 }}
            {{- with .values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with .values.extraContainers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        {{- include "tidelog.serviceVolumes" . | nindent 8 }}
        {{- with .values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
