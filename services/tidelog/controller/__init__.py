"""The controller: owns topics, placement and leader election."""
