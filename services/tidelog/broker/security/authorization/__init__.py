"""Authorization: ACLs as in Kafka's StandardAuthorizer, one table of APIs, and the gate before handlers."""
