"""Values into columns: raw bytes, JSON, Avro, Protobuf; what can't be read is handed back with the reason."""
