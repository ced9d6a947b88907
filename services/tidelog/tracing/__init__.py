"""Export of traces over OpenTelemetry."""
