{{/* The roll of an upgrade. Owner: ROLL. */}}

{{/* What a Deployment's `spec:` gets from the roll (`paused: true`), or nothing. */}}
{{- define "tidelog.roll.deployment" -}}{{- end -}}

{{/* Values of roll, volumeResize and scaleIn that make no sense together. */}}
{{- define "tidelog.validate.operations" -}}{{- end -}}
