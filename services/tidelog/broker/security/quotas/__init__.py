"""Client quotas: limits of bytes, of request time and of topic changes for users and client ids."""
