"""Systems under test and processes of Java for the tests of Kafka's ecosystem."""
