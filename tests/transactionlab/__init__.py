"""What tests of transactions share."""
