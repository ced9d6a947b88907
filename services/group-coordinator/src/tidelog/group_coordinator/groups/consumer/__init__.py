"""Consumer groups by KIP-848."""
