{{/*
Hooks around an upgrade or rollback (ADR 0018). Before it, `prepare` refuses changes or drains brokers that will be
removed, expands volumes and pauses the Deployments. After it, `roll` replaces pods in a safe order. No hook runs at the
installation.
*/}}

{{- define "tidelog.roll.name" -}}
{{- printf "%s-roll" (include "tidelog.fullname" .) -}}
{{- end -}}

{{- define "tidelog.roll.prepareName" -}}
{{- printf "%s-prepare" (include "tidelog.fullname" .) -}}
{{- end -}}

{{/* Service account of a hook: (dict "root" $ "name" its own). */}}
{{- define "tidelog.roll.serviceAccountName" -}}
{{- if .root.Values.rbac.create -}}{{- .name -}}{{- else -}}{{- .root.Values.roll.serviceAccountName -}}{{- end -}}
{{- end -}}

{{/*
Options with the brokers' pods, ready or not, as YAML. During a roll some are not ready, and after a bad upgrade perhaps none
is. While clients move from plaintext to TLS, some brokers do not have both listeners yet, so the hooks know both.
*/}}
{{- define "tidelog.roll.bootstrap" -}}
{{- $host := printf "%s.%s.svc.%s" (include "tidelog.brokersServiceName" .) .Release.Namespace .Values.clusterDomain -}}
{{- if include "tidelog.internalTlsProtocol" . -}}
- --bootstrap-server
- {{ $host }}:9096
{{- if include "tidelog.internalHasPlaintext" . }}
- --plaintext-bootstrap-server
- {{ $host }}:9092
{{- end -}}
{{- else -}}
- --bootstrap-server
- {{ $host }}:9092
{{- end -}}
{{- end -}}

{{/*
`spec:` of a hook's Job: (dict "root" $ "component" "roll" "name" ... "timeoutSeconds" 1800 "args" [...]), and if it needs
them, texts with more entries of "env", "volumes" and "volumeMounts".
*/}}
{{- define "tidelog.roll.jobSpec" -}}
{{- $roll := .root.Values.roll -}}
# An evicted pod is started again. A refusal is final.
backoffLimit: 3
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      onExitCodes: {containerName: {{ .component }}, operator: In, values: [1, 2]}
activeDeadlineSeconds: {{ add .timeoutSeconds 120 }}
ttlSecondsAfterFinished: {{ $roll.keepJobSeconds }}
template:
  metadata:
    labels:
      {{- include "tidelog.selectorLabels" (dict "root" .root "component" .component) | nindent 6 }}
      {{- with .root.Values.commonLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $roll.podLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- with $roll.podAnnotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ .serviceAccountName | default (include "tidelog.roll.serviceAccountName" .) }}
    automountServiceAccountToken: true
    enableServiceLinks: false
    {{- with include "tidelog.imagePullSecrets" .root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    securityContext:
      {{- include "tidelog.podSecurityContext" .root | nindent 6 }}
    {{- with $roll.nodeSelector }}
    nodeSelector:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $roll.tolerations }}
    tolerations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $roll.priorityClassName }}
    priorityClassName: {{ . }}
    {{- end }}
    containers:
      - name: {{ .component }}
        args:
          {{- toYaml .args | nindent 10 }}
        terminationMessagePolicy: FallbackToLogsOnError
        {{- include "tidelog.container" (dict "root" .root "values" (dict "resources" $roll.resources)) | nindent 8 }}
        {{- with .env }}
        env:
          {{- . | nindent 10 }}
        {{- end }}
        volumeMounts:
          - {name: tmp, mountPath: /tmp}
          {{- with .volumeMounts }}
          {{- . | nindent 10 }}
          {{- end }}
    volumes:
      - name: tmp
        emptyDir: {sizeLimit: 16Mi}
      {{- with .volumes }}
      {{- . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* The same for the Jobs that connect to brokers. */}}
{{- define "tidelog.roll.clientJobSpec" -}}
{{- $client := dict "env" (include "tidelog.client.env" .root) "volumes" (include "tidelog.client.volumes" .root) "volumeMounts" (include "tidelog.client.volumeMounts" .root) -}}
{{- include "tidelog.roll.jobSpec" (merge $client .) -}}
{{- end -}}

{{- define "tidelog.validate.operations" -}}
{{- $roll := .Values.roll -}}
{{- if and $roll.enabled (not .Values.rbac.create) (not $roll.serviceAccountName) -}}
{{- fail "roll.serviceAccountName: is empty, but rbac.create is false; name a service account with the permissions of templates/roll/rbac.yaml, or set roll.enabled to false" -}}
{{- end -}}
{{- if and .Values.scaleIn.drain (not $roll.enabled) -}}
{{- fail "scaleIn.drain: the hooks drain brokers, but roll.enabled is false; run 'tidelog rebalance --without ID --execute' before you remove brokers" -}}
{{- end -}}
{{- end -}}
