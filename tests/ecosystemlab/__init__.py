"""What the tests of Kafka's ecosystem share: systems under test, and processes of Java."""
