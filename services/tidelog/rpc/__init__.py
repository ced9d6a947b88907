"""The contracts between the services, and their channels: gRPC between processes, direct calls within one."""
