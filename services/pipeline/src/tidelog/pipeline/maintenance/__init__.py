"""Tables kept in shape: small files made into large ones, files nobody reads removed."""
