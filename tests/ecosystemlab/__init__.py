"""The common part of the tests of Kafka's ecosystem: systems under test, and processes of Java."""
