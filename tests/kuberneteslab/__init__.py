"""What tests of `tidelog kubernetes` share."""
