"""The controller, which decides about topics, the placement of replicas, and partition leaders."""
