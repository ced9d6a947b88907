"""What the services ask of each other."""
